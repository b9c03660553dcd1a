//! Tasks that are begun in the caller (`Spawner::begin`), and where they go on.

use std::future::poll_fn;
use std::task::Poll;
use std::thread::{ThreadId, current};

use super::*;
use crate::engine::Spawner;
use crate::keeper::caller_io::follow::run_inline;

/// In which threads a task was polled, and whether it still exists.
#[derive(Clone, Default)]
struct Course(Arc<Mutex<Vec<ThreadId>>>);

impl Course {
    fn note(&self) {
        of(&self.0).push(current().id());
    }

    /// In which of its polls it was here.
    fn here(&self) -> Vec<bool> {
        of(&self.0).iter().map(|thread| *thread == current().id()).collect()
    }

    fn exists(&self) -> bool {
        Arc::strong_count(&self.0) > 1
    }

    /// Waits for an answer.
    fn waits(&self) -> (oneshot::Sender<()>, impl Future<Output = ()> + Send + 'static) {
        let ((answer, told), course) = (oneshot::channel(), self.clone());
        let task = async move {
            course.note();
            _ = told.await;
            course.note();
        };
        (answer, task)
    }

    /// Is answered while it takes its first look, and then locks what its beginner may have locked.
    fn answered_meanwhile(&self, entry: Arc<Mutex<()>>) -> impl Future<Output = ()> + use<> {
        let (course, mut polled) = (self.clone(), false);
        poll_fn(move |cx| {
            course.note();
            if std::mem::replace(&mut polled, true) {
                drop(of(&entry));
                return Poll::Ready(());
            }
            cx.waker().wake_by_ref();
            Poll::Pending
        })
    }
}

async fn early() -> (Locks, Spawner) {
    let (locks, stub, _) = open(Stub { early: true, ..Stub::default() }).await;
    (locks, stub.context.get().unwrap().spawner.clone())
}

#[tokio::test]
async fn what_is_begun_is_polled_in_the_caller_and_goes_on_where_its_answer_is_read() {
    let (_locks, spawner) = early().await;
    let course = Course::default();
    let (answer, task) = course.waits();
    spawner.begin(task);
    assert_eq!(course.here(), [true]);
    run_inline(|| answer.send(()).unwrap()).unwrap();
    assert_eq!(course.here(), [true, true]);
    assert!(!course.exists());
}

#[tokio::test]
async fn what_is_begun_goes_on_in_the_keeper_where_its_answer_is_read_by_nobody_here() {
    let (_locks, spawner) = early().await;
    let course = Course::default();
    let (answer, task) = course.waits();
    spawner.begin(task);
    answer.send(()).unwrap();
    until("it goes on", || !course.exists()).await;
    assert_eq!(course.here(), [true, false]);
}

#[tokio::test]
async fn what_is_answered_while_it_is_begun_goes_on_once_the_lock_of_an_entry_is_given_back() {
    let (_locks, spawner) = early().await;
    let (course, entry) = (Course::default(), Arc::new(Mutex::new(())));
    let held = of(&entry);
    spawner.begin(course.answered_meanwhile(entry.clone()));
    assert_eq!(of(&course.0)[0], current().id());
    drop(held);
    until("it goes on", || !course.exists()).await;
    assert_eq!(course.here(), [true, false]);
}

#[tokio::test]
async fn what_is_begun_where_answers_are_read_goes_on_there_once_all_are_read() {
    let (_locks, spawner) = early().await;
    let (first, second) = (Course::default(), Course::default());
    let entry = Arc::new(Mutex::new(()));
    run_inline(|| {
        let _held = of(&entry);
        spawner.begin(first.answered_meanwhile(entry.clone()));
        let (answer, task) = second.waits();
        spawner.begin(task);
        answer.send(()).unwrap();
        assert_eq!([first.here(), second.here()], [[true], [true]]);
    })
    .unwrap();
    assert_eq!([first.here(), second.here()], [[true, true], [true, true]]);
    assert!(!first.exists() && !second.exists());
}

#[tokio::test]
async fn what_is_done_at_its_first_look_is_done_in_the_caller() {
    let (_locks, spawner) = early().await;
    let course = Course::default();
    let begun = course.clone();
    spawner.begin(async move { begun.note() });
    assert_eq!(course.here(), [true]);
    assert!(!course.exists());
}

#[tokio::test]
async fn nothing_is_begun_or_goes_on_without_a_keeper() {
    let (locks, spawner) = early().await;
    let (before, after) = (Course::default(), Course::default());
    let (answer, task) = before.waits();
    spawner.begin(task);
    let keeper = Arc::downgrade(&locks.keeper);
    drop(soon("it closes", locks.close()).await);
    drop(locks);
    until("the keeper is gone", || keeper.strong_count() == 0).await;
    answer.send(()).unwrap();
    spawner.begin(after.waits().1);
    assert_eq!([before.here(), after.here()], [vec![true], vec![]]);
    assert!(!before.exists() && !after.exists());
}

#[tokio::test]
async fn an_engine_that_is_looked_at_by_the_keeper_alone_begins_nothing_in_the_caller() {
    let (_locks, stub, _) = open(Stub::default()).await;
    let course = Course::default();
    let (answer, task) = course.waits();
    stub.context.get().unwrap().spawner.begin(task);
    until("it is polled", || !course.here().is_empty()).await;
    answer.send(()).unwrap();
    until("it is over", || !course.exists()).await;
    assert_eq!(course.here(), [false, false]);
}
