//! Places at which a test can stop or kill the process.
//!
//! A provider calls [`reach`] between two steps that a crash must be allowed to separate: before it takes a lock, before
//! it commits, before each rename. Without the feature `failpoints` that is nothing at all, and no program is built with
//! it; only tests ask for it.
//!
//! With it, a place that was armed does what it was armed with when it is reached, once, as if the whole process had been
//! stopped or killed there from outside. Whoever starts the process arms places by the environment variable
//! `POSTRIDER_FAILPOINTS`, for example `sqlite.commit=stop,sqlite.begin=kill@3`, where `@3` is the third time; code that
//! must choose the moment itself calls `arm`. How often a place was reached is counted whether it is armed or not.

#[cfg(feature = "failpoints")]
pub use armed::{Action, arm, passed};

/// This place was reached. Does what it was armed with, if anything.
#[cfg(feature = "failpoints")]
pub fn reach(place: &str) {
    armed::reach(place);
}

/// This place was reached. Nothing can be armed in this build.
#[cfg(not(feature = "failpoints"))]
#[inline(always)]
pub fn reach(_: &str) {}

#[cfg(feature = "failpoints")]
mod armed {
    use std::collections::HashMap;
    use std::sync::{LazyLock, Mutex, MutexGuard, PoisonError};

    use nix::sys::signal::{Signal, raise};

    const VARIABLE: &str = "POSTRIDER_FAILPOINTS";

    /// What a place does.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub enum Action {
        /// Stops the process, with all its threads, until somebody lets it go on (`SIGSTOP`, `SIGCONT`).
        Stop,
        /// Ends the process at once, as a crash would (`SIGKILL`).
        Kill,
    }

    #[derive(Debug, Default)]
    struct Place {
        passed: u64,
        /// What to do when it was passed so often.
        armed: Option<(u64, Action)>,
    }

    type Places = HashMap<String, Place>;

    // A lock, because places are reached by many threads; it is held for a look-up and never while something is done.
    static PLACES: LazyLock<Mutex<Places>> = LazyLock::new(|| {
        let text = std::env::var(VARIABLE).unwrap_or_default();
        let places = parse(&text).unwrap_or_else(|part| {
            // A test that armed nothing by mistake would show nothing.
            eprintln!("{VARIABLE}: '{part}' is none of place=stop, place=kill, place=stop@2");
            std::process::exit(2)
        });
        Mutex::new(places)
    });

    fn places() -> MutexGuard<'static, Places> {
        PLACES.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Answers the part that is wrong, if one is.
    fn parse(text: &str) -> Result<Places, &str> {
        let mut places = Places::new();
        for part in text.split(',').map(str::trim).filter(|part| !part.is_empty()) {
            let (place, what) = part.split_once('=').ok_or(part)?;
            let (action, time) = what.split_once('@').unwrap_or((what, "1"));
            let action = match action {
                "stop" => Action::Stop,
                "kill" => Action::Kill,
                _ => return Err(part),
            };
            let time = time.parse().ok().filter(|time| *time > 0).ok_or(part)?;
            places.insert(place.into(), Place { passed: 0, armed: Some((time, action)) });
        }
        Ok(places)
    }

    /// Arms a place for the next time that it is reached.
    pub fn arm(place: &str, action: Action) {
        let mut places = places();
        let place = places.entry(place.into()).or_default();
        place.armed = Some((place.passed + 1, action));
    }

    /// How often a place has been reached.
    pub fn passed(place: &str) -> u64 {
        places().get(place).map_or(0, |place| place.passed)
    }

    pub(super) fn reach(place: &str) {
        let action = {
            let mut places = places();
            if !places.contains_key(place) {
                places.insert(place.into(), Place::default());
            }
            let Some(place) = places.get_mut(place) else { return };
            place.passed += 1;
            let is_due = |(time, _): &mut (u64, Action)| *time == place.passed;
            place.armed.take_if(is_due).map(|(_, action)| action)
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
        fn the_variable_says_where_what_and_when() {
            let places = parse("sqlite.commit=stop, spool.rename=kill@3,").unwrap();
            assert_eq!(places["sqlite.commit"].armed, Some((1, Action::Stop)));
            assert_eq!(places["spool.rename"].armed, Some((3, Action::Kill)));
            for wrong in ["sqlite.commit", "a=jump", "a=stop@0", "a=kill@x"] {
                assert_eq!(parse(wrong).unwrap_err(), wrong);
            }
        }

        #[test]
        fn places_are_counted_and_do_nothing_until_they_are_armed() {
            for _ in 0..3 {
                reach("counted");
            }
            assert_eq!((passed("counted"), passed("never reached")), (3, 0));
        }
    }
}
