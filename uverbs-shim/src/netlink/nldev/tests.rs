use super::*;

fn device() -> Device {
    Device {
        name: "roxie0".into(),
        firmware: "0.1".into(),
        guid: 0x0102_0304_0506_0708,
        interface: "left".into(),
        interface_index: 7,
        is_active: true,
        counts: [("pd", 1), ("cq", 2), ("qp", 3), ("mr", 4), ("ctx", 1)],
        ..Device::default()
    }
}

/// Builds a request with numeric attributes.
fn request(command: u16, flags: u16, attributes: &[(u16, u32)]) -> Vec<u8> {
    let head = Request { kind: 0, flags: 0, seq: 42, port: 4711, header: &[], attributes: &[] };
    let mut message = Message::new(&head, NLDEV << 10 | command, 1 | flags);
    for (kind, value) in attributes {
        message.number(*kind, *value);
    }
    message.finish()
}

/// Splits datagrams into messages: type, flags, payload.
fn messages(datagrams: &[Vec<u8>]) -> Vec<(u16, u16, Vec<u8>)> {
    let mut all = Vec::new();
    for datagram in datagrams {
        assert!(datagram.len() <= DATAGRAM);
        let mut rest = &datagram[..];
        while let Some((message, after)) = Request::first(rest) {
            assert_eq!((message.seq, message.port), (42, 4711));
            all.push((message.kind, message.flags, message.attributes.to_vec()));
            rest = after;
        }
        assert!(rest.is_empty(), "{rest:?}");
    }
    all
}

/// Splits attributes: type without flags, value.
fn attributes(bytes: &[u8]) -> Vec<(u16, Vec<u8>)> {
    let (mut all, mut rest) = (Vec::new(), bytes);
    while let (Some(length), Some(kind)) = (u16_at(rest, 0), u16_at(rest, 2)) {
        let length = usize::from(length);
        all.push((kind & 0x3fff, rest[4..length].to_vec()));
        rest = rest.get(aligned(length)..).unwrap_or_default();
    }
    all
}

fn value(attributes: &[(u16, Vec<u8>)], wanted: u16) -> &[u8] {
    &attributes.iter().find(|(kind, _)| *kind == wanted).unwrap_or_else(|| panic!("no {wanted}")).1
}

#[test]
fn device_dump_has_one_device_and_an_end() {
    let messages_of_answer = messages(&answers(&request(command::GET, DUMP | ACK, &[]), Some(&device())));
    assert_eq!(
        messages_of_answer.iter().map(|(kind, ..)| *kind).collect::<Vec<_>>(),
        [NLDEV << 10 | command::GET, DONE]
    );
    assert_eq!((messages_of_answer[0].1, messages_of_answer[1].1), (MULTI, MULTI));
    let device_attributes = attributes(&messages_of_answer[0].2);
    assert_eq!(value(&device_attributes, attr::DEV_INDEX), 0u32.to_ne_bytes());
    assert_eq!(value(&device_attributes, attr::DEV_NAME), b"roxie0\0");
    assert_eq!(value(&device_attributes, attr::NODE_GUID), 0x0102_0304_0506_0708u64.to_ne_bytes());
    let none = messages(&answers(&request(command::GET, DUMP, &[]), None));
    assert_eq!(none.iter().map(|(kind, ..)| *kind).collect::<Vec<_>>(), [DONE]);
}

#[test]
fn port_request_is_answered_and_acknowledged() {
    let port_request = request(command::PORT_GET, ACK, &[(attr::DEV_INDEX, 0), (attr::PORT_INDEX, 1)]);
    let replies = messages(&answers(&port_request, Some(&device())));
    let port_attributes = attributes(&replies[0].2);
    assert_eq!(value(&port_attributes, attr::PORT_STATE), [4]);
    assert_eq!(value(&port_attributes, attr::NDEV_NAME), b"left\0");
    assert_eq!(value(&port_attributes, attr::NDEV_INDEX), 7u32.to_ne_bytes());
    assert_eq!((replies[1].0, &replies[1].2[..4]), (ERROR, &0u32.to_ne_bytes()[..]));
    let down = Device { is_active: false, ..device() };
    let replies = messages(&answers(&port_request, Some(&down)));
    assert_eq!(value(&attributes(&replies[0].2), attr::PORT_STATE), [1]);
}

#[test]
fn unknown_objects_are_errors_that_quote_the_request() {
    let errno = |request_bytes: Vec<u8>, device: Option<&Device>| {
        let replies = messages(&answers(&request_bytes, device));
        assert_eq!((replies.len(), replies[0].0), (1, ERROR));
        assert_eq!(replies[0].2[4..4 + HEADER], request_bytes[..HEADER]);
        -i32::from_ne_bytes(replies[0].2[..4].try_into().unwrap())
    };
    let known = device();
    assert_eq!(errno(request(command::GET, 0, &[(attr::DEV_INDEX, 1)]), Some(&known)), libc::ENODEV);
    assert_eq!(errno(request(command::GET, 0, &[(attr::DEV_INDEX, 0)]), None), libc::ENODEV);
    assert_eq!(errno(request(command::GET, 0, &[]), Some(&known)), libc::ENODEV);
    let port_2 = request(command::PORT_GET, 0, &[(attr::DEV_INDEX, 0), (attr::PORT_INDEX, 2)]);
    assert_eq!(errno(port_2, Some(&known)), libc::EINVAL);
    // Requests to create a device, and for its character device: programs then search for the file elsewhere.
    for refused in [3, 15] {
        assert_eq!(errno(request(refused, ACK, &[]), Some(&known)), libc::EOPNOTSUPP);
    }
    let mut other_client = request(command::GET, 0, &[]);
    other_client[4..6].copy_from_slice(&(2u16 << 10).to_ne_bytes());
    assert_eq!(errno(other_client, Some(&known)), libc::EOPNOTSUPP);
}

#[test]
fn summary_counts_each_kind() {
    let replies = messages(&answers(&request(command::RES_GET, DUMP, &[]), Some(&device())));
    let reply_attributes = attributes(&replies[0].2);
    let entries = attributes(value(&reply_attributes, attr::RES_SUMMARY));
    let read: Vec<_> = entries
        .iter()
        .map(|(_, entry)| {
            let entry = attributes(entry);
            let count = value(&entry, attr::RES_SUMMARY_ENTRY_CURR).try_into().unwrap();
            (value(&entry, attr::RES_SUMMARY_ENTRY_NAME).to_vec(), u64::from_ne_bytes(count))
        })
        .collect();
    assert_eq!(read[1], (b"cq\0".to_vec(), 2));
    assert_eq!(read[3], (b"mr\0".to_vec(), 4));
}

#[test]
fn thousand_qps_fit_their_datagrams_without_loss() {
    let qps = (0..1000).map(|number| Qp {
        pid: 9,
        number,
        remote: Some(number),
        kind: 2,
        state: 3,
        ..Qp::default()
    });
    let device = Device { qps: qps.collect(), ..device() };
    let replies =
        messages(&answers(&request(command::RES_QP_GET, DUMP, &[(attr::DEV_INDEX, 0)]), Some(&device)));
    assert_eq!(replies.last().map(|last| last.0), Some(DONE));
    let mut numbers = Vec::new();
    for (.., payload) in &replies[..replies.len() - 1] {
        let reply_attributes = attributes(payload);
        for (_, entry) in attributes(value(&reply_attributes, attr::RES_QP)) {
            let entry = attributes(&entry);
            assert_eq!(value(&entry, attr::RES_PID), 9u32.to_ne_bytes());
            numbers.push(u32::from_ne_bytes(value(&entry, attr::RES_LQPN).try_into().unwrap()));
        }
    }
    assert_eq!(numbers, (0..1000).collect::<Vec<_>>());
    let one = request(command::RES_QP_GET, 0, &[(attr::DEV_INDEX, 0), (attr::RES_LQPN, 17)]);
    let replies = messages(&answers(&one, Some(&device)));
    assert_eq!(value(&attributes(&replies[0].2), attr::RES_RQPN), 17u32.to_ne_bytes());
}

#[test]
fn invalid_messages_are_ignored() {
    let whole = request(command::GET, DUMP, &[]);
    for length in 0..whole.len() {
        assert!(answers(&whole[..length], Some(&device())).is_empty(), "{length} bytes");
    }
    let mut wrong = whole.clone();
    wrong[0] = 3;
    assert!(answers(&wrong, Some(&device())).is_empty());
    // An attribute that exceeds the message is ignored.
    let mut cut = request(command::PORT_GET, 0, &[(attr::DEV_INDEX, 0)]);
    cut[HEADER] = 200;
    assert_eq!(messages(&answers(&cut, Some(&device())))[0].0, ERROR);
    // Two requests in one datagram are answered in order.
    let both = [whole.clone(), whole].concat();
    assert_eq!(messages(&answers(&both, Some(&device()))).len(), 4);
}

#[test]
fn system_reports_shared_devices_and_copy_on_fork() {
    let replies = messages(&answers(&request(command::SYS_GET, 0, &[]), None));
    let reply_attributes = attributes(&replies[0].2);
    assert_eq!(
        (
            replies.len(),
            value(&reply_attributes, attr::SYS_NETNS_MODE),
            value(&reply_attributes, attr::SYS_COPY_ON_FORK)
        ),
        (1, &[1][..], &[1][..])
    );
}

#[test]
fn other_objects_are_neither_listed_nor_found() {
    let pd_request = |flags| request(command::RES_PD_GET, flags, &[(attr::DEV_INDEX, 0)]);
    let listed = messages(&answers(&pd_request(DUMP), Some(&device())));
    assert_eq!(listed.iter().map(|(kind, ..)| *kind).collect::<Vec<_>>(), [DONE]);
    let one = messages(&answers(&pd_request(0), Some(&device())));
    assert_eq!((one[0].0, &one[0].2[..4]), (ERROR, &(-libc::ENOENT).to_ne_bytes()[..]));
}
