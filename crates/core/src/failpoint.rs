//! Failpoints: code positions at which a test can stop or kill the process.
//!
//! A provider calls [`reach`] between two steps that a crash may separate: before it takes a lock, before it commits,
//! before each rename. Without the feature `failpoints`, which only tests enable, the call does nothing.
//!
//! With the feature, an armed failpoint runs its action once when it is reached, as if the process had been stopped or
//! killed from outside. The environment variable `POSTRIDER_FAILPOINTS` arms failpoints at the start of the process, for
//! example `sqlite.commit=stop,sqlite.begin=kill@3`, where `@3` is the third time that it is reached; code that must
//! choose the moment calls `arm`. Each failpoint counts how often it was reached.

#[cfg(feature = "failpoints")]
pub use armed::{Action, arm, passed};

/// Marks a failpoint as reached, and runs its action if it is armed.
#[cfg(feature = "failpoints")]
pub fn reach(failpoint: &str) {
    armed::reach(failpoint);
}

/// Does nothing: this build has no failpoints.
#[cfg(not(feature = "failpoints"))]
#[inline(always)]
pub fn reach(_: &str) {}

#[cfg(feature = "failpoints")]
mod armed {
    use std::collections::HashMap;
    use std::sync::{LazyLock, Mutex, MutexGuard, PoisonError};

    use nix::sys::signal::{Signal, raise};

    const VARIABLE: &str = "POSTRIDER_FAILPOINTS";

    /// The action of a failpoint.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub enum Action {
        /// Stops the process with all its threads (`SIGSTOP`), until it gets `SIGCONT`.
        Stop,
        /// Kills the process (`SIGKILL`), like a crash.
        Kill,
    }

    #[derive(Debug, Default)]
    struct Failpoint {
        passed: u64,
        /// The pass at which the action runs, and the action.
        armed: Option<(u64, Action)>,
    }

    type Failpoints = HashMap<String, Failpoint>;

    // Held for a look-up only, never during an action.
    static FAILPOINTS: LazyLock<Mutex<Failpoints>> = LazyLock::new(|| {
        let text = std::env::var(VARIABLE).unwrap_or_default();
        let failpoints = parse(&text).unwrap_or_else(|part| {
            // A test that arms nothing by mistake would pass without testing anything.
            eprintln!("{VARIABLE}: invalid failpoint '{part}'; write NAME=stop, NAME=kill or NAME=stop@2");
            std::process::exit(2)
        });
        Mutex::new(failpoints)
    });

    fn failpoints() -> MutexGuard<'static, Failpoints> {
        FAILPOINTS.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Parses the variable; the error is the invalid part.
    fn parse(text: &str) -> Result<Failpoints, &str> {
        let mut failpoints = Failpoints::new();
        for part in text.split(',').map(str::trim).filter(|part| !part.is_empty()) {
            let (failpoint, what) = part.split_once('=').ok_or(part)?;
            let (action, time) = what.split_once('@').unwrap_or((what, "1"));
            let action = match action {
                "stop" => Action::Stop,
                "kill" => Action::Kill,
                _ => return Err(part),
            };
            let time = time.parse().ok().filter(|time| *time > 0).ok_or(part)?;
            failpoints.insert(failpoint.into(), Failpoint { passed: 0, armed: Some((time, action)) });
        }
        Ok(failpoints)
    }

    /// Arms a failpoint for the next time that it is reached.
    pub fn arm(failpoint: &str, action: Action) {
        let mut failpoints = failpoints();
        let failpoint = failpoints.entry(failpoint.into()).or_default();
        failpoint.armed = Some((failpoint.passed + 1, action));
    }

    /// How often a failpoint has been reached.
    pub fn passed(failpoint: &str) -> u64 {
        failpoints().get(failpoint).map_or(0, |failpoint| failpoint.passed)
    }

    pub(super) fn reach(failpoint: &str) {
        let action = {
            let mut failpoints = failpoints();
            if !failpoints.contains_key(failpoint) {
                failpoints.insert(failpoint.into(), Failpoint::default());
            }
            let Some(failpoint) = failpoints.get_mut(failpoint) else { return };
            failpoint.passed += 1;
            let is_due = |(time, _): &mut (u64, Action)| *time == failpoint.passed;
            failpoint.armed.take_if(is_due).map(|(_, action)| action)
        };
        let signal = match action {
            None => return,
            Some(Action::Stop) => Signal::SIGSTOP,
            Some(Action::Kill) => Signal::SIGKILL,
        };
        if let Err(error) = raise(signal) {
            eprintln!("{VARIABLE}: cannot raise {signal}: {error}");
            std::process::exit(2);
        }
    }

    #[cfg(test)]
    mod tests {
        use super::*;

        #[test]
        fn the_variable_is_parsed() {
            let failpoints = parse("sqlite.commit=stop, spool.rename=kill@3,").unwrap();
            assert_eq!(failpoints["sqlite.commit"].armed, Some((1, Action::Stop)));
            assert_eq!(failpoints["spool.rename"].armed, Some((3, Action::Kill)));
            for wrong in ["sqlite.commit", "a=jump", "a=stop@0", "a=kill@x"] {
                assert_eq!(parse(wrong).unwrap_err(), wrong);
            }
        }

        #[test]
        fn failpoints_are_counted_and_do_nothing_unless_armed() {
            for _ in 0..3 {
                reach("counted");
            }
            assert_eq!((passed("counted"), passed("never reached")), (3, 0));
        }
    }
}
