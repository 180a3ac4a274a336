//! What ARCHITECTURE.md and README.md say of the tree is true.

use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
    process::Command,
};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("tests/ lies in the top folder").to_owned()
}

/// Every Rust file below a folder, by its path from the top.
fn rust_files(folder: &Path, found: &mut BTreeSet<String>) {
    for entry in fs::read_dir(folder).expect("a folder").flatten() {
        let path = entry.path();
        let name = entry.file_name();
        if path.is_dir() && name != "target" && !name.to_string_lossy().starts_with('.') {
            rust_files(&path, found);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            found.insert(path.strip_prefix(root()).expect("below the top").to_string_lossy().into_owned());
        }
    }
}

/// The paths in backticks in a text. In a list, `sheaf.rs` after `mempool/src/barn.rs` is its neighbour.
fn paths_in(text: &str) -> Vec<String> {
    let mut folder = String::new();
    let mut paths = Vec::new();
    for line in text.lines() {
        for quoted in line.split('`').skip(1).step_by(2) {
            let is_source =
                Path::new(quoted).extension().is_some_and(|extension| extension == "rs" || extension == "c");
            let is_path = is_source || quoted.ends_with('/');
            if !is_path || quoted.contains(' ') {
                continue;
            }
            let is_full =
                root().join(quoted.split('/').next().unwrap_or_default()).is_dir() && quoted.contains('/');
            let path = if is_full { quoted.to_owned() } else { format!("{folder}{quoted}") };
            // The folder of the first path is what the others of its line stand in.
            if folder.is_empty()
                && let Some((parent, _)) = path.rsplit_once('/')
            {
                folder = format!("{parent}/");
            }
            paths.push(path);
        }
        folder.clear();
    }
    paths
}

#[test]
fn every_file_that_the_architecture_names_is_there() {
    let text = fs::read_to_string(root().join("ARCHITECTURE.md")).unwrap();
    let paths = paths_in(&text);
    assert!(paths.len() > 60, "only {} paths were found", paths.len());
    let missing: Vec<_> = paths.iter().filter(|path| !root().join(path).exists()).collect();
    assert!(missing.is_empty(), "{missing:?}");
}

#[test]
fn every_source_file_is_in_the_code_map() {
    let text = fs::read_to_string(root().join("ARCHITECTURE.md")).unwrap();
    let map = text.split("## Code map").nth(1).unwrap().split("\n## ").next().unwrap();
    let named = paths_in(map);
    let mut files = BTreeSet::new();
    rust_files(&root(), &mut files);
    let covered = |file: &String| {
        file.starts_with("tests/") // As a whole.
            || file.ends_with("/lib.rs")
            || file.ends_with("/error.rs")
            || file.ends_with("/build.rs")
            || file.ends_with("/models.rs")
            || file.contains("/tests/")
            || named.iter().any(|path| file == path || path.ends_with('/') && file.starts_with(path))
    };
    let missing: Vec<_> = files.iter().filter(|file| !covered(file)).collect();
    assert!(missing.is_empty(), "not in the code map: {missing:?}");
}

#[test]
fn the_list_of_files_with_unsafe_is_complete_and_no_longer_than_that() {
    let text = fs::read_to_string(root().join("ARCHITECTURE.md")).unwrap();
    let list = text.split("## Unsafe code").nth(1).unwrap().split("\n## ").next().unwrap();
    let listed: BTreeSet<String> = paths_in(list).into_iter().filter(|path| !path.ends_with('/')).collect();
    let mut files = BTreeSet::new();
    rust_files(&root(), &mut files);
    let is_unsafe = |file: &&String| {
        let text = fs::read_to_string(root().join(file)).unwrap();
        let code = text.lines().filter(|line| !line.trim_start().starts_with("//"));
        code.clone()
            .any(|line| ["unsafe {", "unsafe impl", "unsafe fn"].iter().any(|word| line.contains(word)))
            && !file.ends_with("docs.rs")
    };
    let found: BTreeSet<String> = files.iter().filter(is_unsafe).cloned().collect();
    assert_eq!(found, listed);
}

#[test]
fn nothing_else_stands_at_the_top() {
    let allowed = [
        "ARCHITECTURE.md",
        "Cargo.lock",
        "Cargo.toml",
        "LICENSE-APACHE",
        "LICENSE-MIT",
        "README.md",
        "apps",
        "core",
        "deploy",
        "drivers",
        "mempool",
        "target",
        "tests",
    ];
    for entry in fs::read_dir(root()).unwrap().flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        assert!(name.starts_with('.') || allowed.contains(&name.as_str()), "{name}");
    }
}

/// `deploy/packages` explains each of its sets, and names them to who asks for another one. Nothing is installed here.
#[test]
fn the_sets_of_packages_are_told() {
    let script = root().join("deploy/packages");
    let run = |args: &[&str]| {
        let output = Command::new(&script).args(args).output().unwrap();
        let [stdout, stderr] = [output.stdout, output.stderr].map(|text| String::from_utf8(text).unwrap());
        (output.status.code(), stdout, stderr)
    };
    let text = fs::read_to_string(&script).unwrap();
    let sets =
        text.lines().filter_map(|line| line.strip_prefix("  [")?.split_once("]=")).map(|(name, _)| name);
    let sets: BTreeSet<_> = sets.collect();
    assert!(sets.contains("build"), "{sets:?}");
    for asked in ["-h", "--help"] {
        let (code, stdout, stderr) = run(&[asked]);
        assert_eq!((code, stderr.as_str()), (Some(0), ""));
        let explained = stdout.lines().filter_map(|line| line.strip_prefix("  ")?.split(' ').next());
        assert_eq!(explained.collect::<BTreeSet<_>>(), sets);
    }
    let allowed = sets.iter().copied().collect::<Vec<_>>().join(" ");
    for unknown in ["nothing", "", "build demo"] {
        let told = format!("deploy/packages: unknown set '{unknown}'; allowed: {allowed}\n");
        assert_eq!(run(&[unknown]), (Some(2), String::new(), told));
    }
}

/// README.md's short table says from which kernel on a driver has something, as the whole table does, which
/// `tests/guest/run --all` writes.
#[test]
fn the_readme_tells_from_which_kernel_on_drivers_have_what() {
    let read = |path: &str| fs::read_to_string(root().join(path)).unwrap();
    let rows = |text: &str| -> Vec<Vec<String>> {
        let cells =
            |line: &str| line.trim_matches('|').split('|').map(|cell| cell.trim().to_owned()).collect();
        text.lines().filter(|line| line.starts_with('|')).map(cells).collect()
    };
    let features = rows(&read("tests/guest/features.md"));
    let first_with = |driver: &str, columns: &[&str]| {
        let places = columns.iter().map(|name| features[0].iter().position(|column| column == name).unwrap());
        let places: Vec<_> = places.collect();
        let has = |row: &&Vec<String>| row[1] == driver && places.iter().any(|place| row[*place] != "no");
        features[2..].iter().find(has).map_or_else(|| "none".to_owned(), |row| row[0].clone())
    };
    let readme = read("README.md");
    let section = readme.split("### Kernels and drivers").nth(1).unwrap().split("\n## ").next().unwrap();
    let table = rows(section);
    assert_eq!(table.len(), 2 + 4, "{table:?}");
    let kernels: BTreeSet<_> = features[2..].iter().map(|row| &row[0]).collect();
    for kernel in kernels {
        assert!(
            section.lines().any(|line| line.contains("first kernel") && line.contains(kernel.as_str())),
            "{kernel}"
        );
    }
    let columns: [&[&str]; 4] =
        [&["native"], &["zero-copy"], &["multi-buffer, copy", "multi-buffer, zero-copy"], &["TX budget"]];
    for row in &table[2..] {
        for (told, columns) in row[1..].iter().zip(columns) {
            let told = told.split(',').next().unwrap();
            assert_eq!(told, first_with(&row[0], columns), "{}: {columns:?}", row[0]);
        }
    }
}
