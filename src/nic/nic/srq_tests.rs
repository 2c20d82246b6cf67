use super::super::{MemoryCommand, NicConfig};
use super::*;

fn run(nic: &mut Nic, command: MemoryCommand) -> Result<Answer, ControlError> {
    nic.execute(Nanos::ZERO, command.into())
}

#[test]
fn full_srq_moves_in_slices() {
    let mut nic = Nic::new(NicConfig::default());
    let Ok(Answer::Pd(pd)) = nic.execute(Nanos::ZERO, super::super::Command::AllocPd) else {
        panic!("no domain")
    };
    let ring = |size| RecvRing::new(size, 1).expect("memory");
    let (old, new) = (ring(2 * MOVES), ring(4 * MOVES));
    let make = MemoryCommand::CreateSrq { pd, init: SrqInit::default(), ring: old.clone() };
    let Ok(Answer::Srq(srq, _)) = run(&mut nic, make) else { panic!("no queue") };
    (0..2 * MOVES).for_each(|id| assert_eq!(old.post(id.into(), &[]), Ok(false)));
    let resize = |ring: &RecvRing, limit| MemoryCommand::ModifySrq { srq, ring: Some(ring.clone()), limit };
    let refused = run(&mut nic, resize(&ring(MOVES), Some(1))).map(drop);
    let object = ObjectKind::SharedReceiveQueue;
    assert_eq!(refused, Err(ControlError::TooSmall { object, size: MOVES, holds: 2 * MOVES }));
    assert_eq!(nic.srq_status(srq).expect("it exists").limit, 0, "nothing has changed");

    let queue = Object::Srq(srq);
    assert!(matches!(run(&mut nic, resize(&new, Some(3 * MOVES))), Ok(Answer::Moving(of)) if of == queue));
    let second = run(&mut nic, resize(&new, None)).map(drop);
    assert_eq!(second, Err(ControlError::Taken("size of the shared receive queue")));
    assert!(nic.go_on_moving(Nanos::ZERO, queue).is_none());
    let taken = nic.srqs.take(srq, &mut []).expect("receives are taken while it moves");
    assert!(matches!(nic.go_on_moving(Nanos::ZERO, queue), Some(Ok(Answer::Done))));
    let status = nic.srq_status(srq).expect("it exists");
    assert_eq!((taken.wr_id, status.waiting, status.max_wr), (0, 2 * MOVES - 1, 4 * MOVES));

    // A queue that is destroyed while it moves.
    assert!(matches!(run(&mut nic, resize(&old, None)), Ok(Answer::Moving(_))));
    nic.execute(Nanos::ZERO, super::super::Command::DestroySrq(srq)).expect("unused");
    assert!(matches!(nic.go_on_moving(Nanos::ZERO, queue), Some(Err(ControlError::NotFound(_)))));
}
