//! Generated pages in `docs`.

use std::path::Path;

/// Compares a page with its file in `docs`. With the variable `POSTRIDER_WRITE_DOCS` it writes the file first; `test` is
/// the test to run for that.
pub(crate) fn ensure_up_to_date(name: &str, page: &str, test: &str) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs").join(name);
    if std::env::var_os("POSTRIDER_WRITE_DOCS").is_some() {
        std::fs::write(&path, page).unwrap();
    }
    let written = std::fs::read_to_string(&path).unwrap_or_default();
    let differing = page.lines().zip(written.lines()).position(|(made, found)| made != found);
    let line = differing.unwrap_or(page.lines().count().min(written.lines().count()));
    assert!(
        written == page,
        "docs/{name} is not what it should be from line {} on: '{}'; write it anew with \
         'POSTRIDER_WRITE_DOCS=1 cargo test -p postrider --all-features {test}'",
        line + 1,
        page.lines().nth(line).unwrap_or_default(),
    );
}

#[test]
fn configuration_page_is_up_to_date() {
    ensure_up_to_date("configuration.md", &postrider::config::reference_page(), "configuration_page");
}
