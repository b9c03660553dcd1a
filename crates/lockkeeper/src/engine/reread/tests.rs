use std::path::PathBuf;
use std::sync::mpsc;
use std::time::Duration;

use super::*;

fn of(path: PathBuf) -> Reread<String> {
    Reread::new("password_file=FILE", move |_| text("password_file=FILE", &path))
}

fn soon() -> Instant {
    Instant::now() + Duration::from_secs(120)
}

#[tokio::test]
async fn b2_a_file_that_changed_is_read_again_and_its_line_end_is_none_of_it() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("password");
    std::fs::write(&path, "old\r\n").unwrap();
    let file = of(path.clone());
    assert_eq!(file.now(soon()).await.unwrap(), "old");
    std::fs::write(&path, "new\n").unwrap();
    assert_eq!(file.now(soon()).await.unwrap(), "new");
}

#[tokio::test]
async fn b2_what_is_empty_gone_no_text_or_no_file_leaves_the_last_good_content_in_use() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("password");
    std::fs::write(&path, "good").unwrap();
    let file = of(path.clone());
    assert_eq!(file.now(soon()).await.unwrap(), "good");
    for half in [&b""[..], b"\n", b"\xff\xfe"] {
        std::fs::write(&path, half).unwrap();
        assert_eq!(file.now(soon()).await.unwrap(), "good", "{half:?}");
    }
    std::fs::remove_file(&path).unwrap();
    assert_eq!(file.now(soon()).await.unwrap(), "good");
    std::fs::create_dir(&path).unwrap();
    assert_eq!(file.now(soon()).await.unwrap(), "good");
    std::fs::remove_dir(&path).unwrap();
    std::fs::write(&path, "next").unwrap();
    assert_eq!(file.now(soon()).await.unwrap(), "next");
}

#[tokio::test]
async fn b2_the_first_reading_tells_why_there_is_none() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("password");
    let why = async |path: &PathBuf| {
        let error = of(path.clone()).now(soon()).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{error}");
        error.message().to_owned()
    };
    assert!(why(&path).await.starts_with("password_file=FILE cannot be read: No such file"));
    std::fs::write(&path, "").unwrap();
    assert!(why(&path).await.contains("it is empty"));
}

/// Nobody writes to the pipe: a reader that opens it as a file never returns.
#[tokio::test]
async fn b2_a_pipe_is_not_read() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("password");
    nix::unistd::mkfifo(&path, nix::sys::stat::Mode::S_IRWXU).unwrap();
    let error = of(path).now(soon()).await.unwrap_err();
    assert!(error.message().contains("it is no regular file"), "{error}");
}

/// A mount that hangs, as a reading that ends when the test says so.
#[tokio::test]
async fn b2_a_reading_that_hangs_is_not_waited_for_twice_and_holds_up_nobody() {
    let (ends, hangs) = mpsc::channel::<&str>();
    let hangs = std::sync::Mutex::new(hangs);
    let file = Reread::new("password_file=FILE", move |_| {
        Ok(hangs.lock().unwrap().recv().unwrap_or("nobody").to_owned())
    });
    ends.send("good").unwrap();
    assert_eq!(file.now(soon()).await.unwrap(), "good");
    // It hangs: while the test goes on in this very thread, the last good content is told.
    let until = Instant::now() + Duration::from_millis(40);
    assert_eq!(file.now(until).await.unwrap(), "good");
    // Polled once, with as much time as there may be: nothing is waited for any more.
    let mut again = std::pin::pin!(file.now(soon()));
    let polled = std::future::poll_fn(|cx| std::task::Poll::Ready(again.as_mut().poll(cx))).await;
    assert!(matches!(polled, std::task::Poll::Ready(Ok(good)) if good == "good"));
    // Once it has ended, what it read is told.
    for new in ["new"; 3] {
        ends.send(new).unwrap();
    }
    let mut state = file.0.state.subscribe();
    state.wait_for(|state| !state.reading).await.unwrap();
    assert_eq!(file.now(soon()).await.unwrap(), "new");
}

/// A writer that is slow: what stands there is another text at each look, and then the whole.
#[tokio::test]
async fn b2_a_half_written_content_does_not_count() {
    let (writes, reads) = mpsc::channel::<&str>();
    let reads = std::sync::Mutex::new(reads);
    let file = Reread::new("password_file=FILE", move |_| {
        Ok(reads.lock().unwrap().recv().unwrap_or("nobody").to_owned())
    });
    for half in ["old", "ne", "new", "newe", "newer", "newer"] {
        writes.send(half).unwrap();
    }
    assert_eq!(file.now(soon()).await.unwrap(), "old");
    assert_eq!(file.now(soon()).await.unwrap(), "newer");
}

#[tokio::test]
async fn b2_what_was_read_is_never_shown() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("password");
    std::fs::write(&path, "sesame").unwrap();
    let file = of(path);
    file.now(soon()).await.unwrap();
    assert_eq!(format!("{file:?}"), "Reread(password_file=FILE)");
}
