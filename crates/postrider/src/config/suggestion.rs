//! Suggestions for unknown names.

/// The name nearest to `wrong`, if one is near enough.
pub fn nearest<'a>(wrong: &str, known: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let wrong = wrong.to_lowercase();
    known
        .into_iter()
        .map(|name| (strsim::damerau_levenshtein(&wrong, &name.to_lowercase()), name))
        // Up to a third of its letters may be wrong; with more, any short name would be like any other.
        .filter(|(distance, name)| distance * 3 <= name.chars().count().max(wrong.chars().count()))
        .min_by_key(|(distance, _)| *distance)
        .map(|(_, name)| name)
}

/// The path that the dotted path `wrong` may mean: one that differs a little in its last name, or has a word less or more
/// there, else one with the same last name in another section, else the nearest as a whole.
pub(super) fn nearest_path<'a>(wrong: &str, known: &[&'a str]) -> Option<&'a str> {
    let (section, name) = split(wrong);
    let beside = || known.iter().copied().filter(|path| split(path).0 == section);
    let by_a_word = || beside().find(|path| begins_with(name, split(path).1) || begins_with(split(path).1, name));
    let same_name = || known.iter().copied().find(|path| split(path).1 == name);
    let as_a_whole = || nearest(wrong, known.iter().copied());
    nearest_by(name, beside()).or_else(by_a_word).or_else(same_name).or_else(as_a_whole)
}

fn nearest_by<'a>(name: &str, paths: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    let paths: Vec<_> = paths.collect();
    let found = nearest(name, paths.iter().map(|path| split(path).1))?;
    paths.into_iter().find(|path| split(path).1 == found)
}

/// Whether a name is another one with more words appended.
fn begins_with(name: &str, other: &str) -> bool {
    name.strip_prefix(other).is_some_and(|rest| rest.starts_with('_'))
}

/// The section and the last name of a path.
fn split(path: &str) -> (&str, &str) {
    path.rsplit_once('.').unwrap_or(("", path))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn misspellings_get_suggestions_and_other_names_none() {
        let known = ["provider", "url", "default_batch_size", "max_batch_size"];
        assert_eq!(nearest("batchsize", known), None);
        assert_eq!(nearest("max_batchsize", known), Some("max_batch_size"));
        assert_eq!(nearest("Provider", known), Some("provider"));
        assert_eq!(nearest("ulr", known), Some("url"));
        assert_eq!(nearest("uri", known), Some("url"));
        assert_eq!(nearest("x", known), None);
    }

    #[test]
    fn the_right_name_in_the_wrong_section_is_found() {
        let known = ["common", "common.messaging", "common.messaging.url", "common.messaging.rabbitmq.prefetch_count"];
        assert_eq!(nearest_path("common.mesaging", &known), Some("common.messaging"));
        assert_eq!(nearest_path("messaging", &known), Some("common.messaging"));
        let prefetch = "common.messaging.rabbitmq.prefetch_count";
        assert_eq!(nearest_path("common.messaging.prefetch_count", &known), Some(prefetch));
        assert_eq!(nearest_path("commmon.messaging.url", &known), Some("common.messaging.url"));
        assert_eq!(nearest_path("weather", &known), None);
    }

    #[test]
    fn a_word_too_many_in_the_right_section_goes_before_another_section() {
        let known = ["common.spool.lock_timeout", "common.sqlite.lock_timeout_seconds"];
        assert_eq!(nearest_path("common.spool.lock_timeout_seconds", &known), Some(known[0]));
        assert_eq!(nearest_path("common.sqlite.lock_timeout", &known), Some(known[1]));
    }
}
