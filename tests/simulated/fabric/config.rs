//! Invalid configurations are refused with valid values.

use roxie_sim::fabric::{
    ConfigError, EcnConfig, End, Fabric, FabricConfig, LinkRate, PfcConfig, PriorityMap, Routing, Schedule,
    Switch, SwitchConfig, Threshold,
};

use super::{stations, switch};

fn refused(change: impl FnOnce(&mut SwitchConfig)) -> ConfigError {
    let mut config = switch(2);
    change(&mut config);
    Switch::new(config).expect_err("this is no switch")
}

#[test]
fn invalid_number_is_refused_with_valid_range() {
    let ecn = |kmin, kmax, pmax| Some(EcnConfig { kmin, kmax, pmax });
    let error = refused(|c| c.ports[1].ecn[3] = ecn(2000, 1000, 0.5));
    assert_eq!(error, ConfigError::Kmin { kmin: 2000, kmax: 1000 });
    assert!(error.to_string().contains("Kmin is at most Kmax"), "{error}");
    for pmax in [-0.1, 1.1, f64::INFINITY] {
        assert_eq!(refused(|c| c.ports[0].ecn[0] = ecn(1, 2, pmax)), ConfigError::Pmax(pmax));
    }
    assert!(matches!(refused(|c| c.ports[0].ecn[0] = ecn(1, 2, f64::NAN)), ConfigError::Pmax(_)));
    assert_eq!(refused(|c| c.ports[0].link.rate = LinkRate(0)), ConfigError::NoRate);
    assert_eq!(
        refused(|c| c.priorities = PriorityMap::Pcp([0, 1, 2, 8, 4, 5, 6, 7])),
        ConfigError::Priority(8)
    );
    assert_eq!(PfcConfig::new(&[8]), Err(ConfigError::Priority(8)));
    assert_eq!(refused(|c| c.ports[0].schedule[1] = Schedule::Ets(0)), ConfigError::Weight(0));
    assert_eq!(refused(|c| c.lossy = Threshold::Dynamic(0.0)), ConfigError::Alpha(0.0));
    assert_eq!(refused(|c| c.cell = 0), ConfigError::Cell);
    assert_eq!(refused(|c| c.ports.clear()), ConfigError::Ports);
    assert_eq!(refused(|c| c.longest_frame = 20), ConfigError::LongestFrame(20));
    let pfc = PfcConfig { quanta: 0, ..PfcConfig::new(&[3]).expect("a priority") };
    assert_eq!(refused(|c| c.pfc = Some(pfc)), ConfigError::Quanta);
}

#[test]
fn overcommitted_buffer_is_refused() {
    let error = refused(|c| {
        c.reserved = 1000;
        c.pfc = Some(PfcConfig { headroom: Some(5000), ..PfcConfig::new(&[3, 4]).expect("priorities") });
        c.buffer = 35_999;
    });
    assert_eq!(error, ConfigError::Buffer { promised: 2 * (8 * 1000 + 2 * 5000), buffer: 35_999 });
}

#[test]
fn inconsistent_links_are_refused() {
    let end = |port| End::Switch { switch: 0, port };
    let build = |links| {
        Fabric::new(FabricConfig {
            stations: stations(2),
            switches: vec![switch(2)],
            links,
            routing: Routing::ShortestPath,
            seed: 0,
        })
    };
    let good = vec![[End::Station(0), end(0)], [End::Station(1), end(1)]];
    build(good.clone()).expect("a fabric");
    for (links, says) in [
        (vec![good[0]], "station 1 has no link"),
        (vec![good[0], [End::Station(1), end(0)]], "two links end at"),
        (vec![good[0], [End::Station(1), end(2)]], "does not exist"),
        (vec![good[0], good[1], [End::Station(2), end(1)]], "does not exist"),
    ] {
        let error = build(links).expect_err("no fabric").to_string();
        assert!(error.contains(says), "{error}");
    }
}
