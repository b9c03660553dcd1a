//! What `torture` and `bench` start: it ends with them, and no URL stands in an argument list.

mod clients;
mod endings;
mod engines;
mod reports;

use std::process::Command;

use crate::common::Place;

fn place() -> Place {
    let place = Place::new();
    std::fs::create_dir(place.path("tmp")).unwrap();
    place
}

fn torture(place: &Place, arguments: &[&str]) -> Command {
    let mut command = place.lk(["torture"]);
    command.args(arguments).env("TMPDIR", place.path("tmp"));
    command
}

fn histories(place: &Place) -> usize {
    let inside = std::fs::read_dir(place.path("tmp"))
        .unwrap()
        .flat_map(|dir| std::fs::read_dir(dir.unwrap().path()).unwrap());
    inside
        .filter(|file| file.as_ref().unwrap().file_name().to_string_lossy().starts_with("client-"))
        .count()
}

fn arguments_of(pid: i32) -> String {
    String::from_utf8_lossy(&std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default())
        .replace('\0', " ")
}
