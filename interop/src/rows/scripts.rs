//! Rows with scripts of packets.

use std::fmt;

/// Defines an enum of cases, a constant with all of them in order, and their names.
macro_rules! cases {
    ($(#[$meta:meta])* $kind:ident, $all:ident: $count:literal, { $($case:ident = $name:literal,)+ }) => {
        $(#[$meta])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
        #[expect(missing_docs, reason = "the tables of crate::exec say it")]
        pub enum $kind {
            $($case,)+
        }

        #[doc = concat!("Every [`", stringify!($kind), "`].")]
        pub const $all: [$kind; $count] = [$($kind::$case,)+];

        impl fmt::Display for $kind {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(match self {
                    $($kind::$case => $name,)+
                })
            }
        }
    };
}

cases! {
    /// Invalid requests; see [`crate::exec::wrong`].
    Wrong, WRONG: 32, {
        DuplicateSend = "duplicate_send",
        DuplicateFarBehind = "duplicate_far_behind",
        Ahead = "ahead",
        GhostAck = "ghost_ack",
        UnaskedReadResponse = "unasked_read_response",
        UnknownOpcode = "unknown_opcode",
        OtherService = "other_service",
        BadVersion = "bad_version",
        BadPkey = "bad_pkey",
        BadIcrc = "bad_icrc",
        MiddleFirst = "middle_first",
        LastFirst = "last_first",
        FirstTwice = "first_twice",
        OnlyAfterFirst = "only_after_first",
        OtherMiddle = "other_middle",
        ShortFirst = "short_first",
        EmptyLast = "empty_last",
        WrongLength = "wrong_length",
        WrongPad = "wrong_pad",
        PaddedFirst = "padded_first",
        UnpaddedSend = "unpadded_send",
        LongOnly = "long_only",
        LongSend = "long_send",
        PartialReadReplay = "partial_read_replay",
        WiderReadReplay = "wider_read_replay",
        Probe = "probe",
        AtomicWriteOfFour = "atomic_write_of_four",
        AtomicWriteOfSixteen = "atomic_write_of_sixteen",
        FlushOfNoType = "flush_of_no_type",
        FlushOfOtherType = "flush_of_other_type",
        FlushOfOtherLevel = "flush_of_other_level",
        Notification = "notification",
    }
}

cases! {
    /// Invalid responses; see [`crate::exec::odd`].
    Odd, ODD: 16, {
        DuplicateAck = "duplicate_ack",
        GhostAck = "ghost_ack",
        OldSequenceNak = "old_sequence_nak",
        OldAccessNak = "old_access_nak",
        NakAhead = "nak_ahead",
        UnknownNak = "unknown_nak",
        AckInsideRead = "ack_inside_read",
        AckBeyondRead = "ack_beyond_read",
        ReadGap = "read_gap",
        ReadOvertaken = "read_overtaken",
        ReadTooLong = "read_too_long",
        ReadTooShort = "read_too_short",
        ReadFirstShort = "read_first_short",
        ReadMiddleFirst = "read_middle_first",
        ReadOfSend = "read_of_send",
        AtomicAnswerToRead = "atomic_answer_to_read",
    }
}
