//! Following several answers at the same time.

use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::task::Poll;
use std::time::Duration;

use tokio::time::sleep;

use crate::engine::Renewal;
use crate::words::error::{Error, ErrorKind};

/// For how long nothing may come, once something has, before the rest is not waited for.
const SILENCE: Duration = Duration::from_millis(500);

/// Follows all of them, and gives what each came to. Where some have come, and then none has for a
/// while, the others are given up: what is about one slot or one node is not to keep back the news
/// of the rest.
pub(super) async fn all_that_come<F: Future>(futures: Vec<F>) -> Vec<Option<F::Output>> {
    follow(futures, SILENCE).await
}

/// Follows all of them, and gives what each came to.
pub(super) async fn all<F: Future>(futures: Vec<F>) -> Vec<F::Output> {
    follow(futures, Duration::MAX).await.into_iter().flatten().collect()
}

async fn follow<F: Future>(futures: Vec<F>, silence_max: Duration) -> Vec<Option<F::Output>> {
    let mut answers: Vec<Option<F::Output>> = futures.iter().map(|_| None).collect();
    let mut waiting: Vec<Option<Pin<Box<F>>>> =
        futures.into_iter().map(|one| Some(Box::pin(one))).collect();
    let (mut some, mut silence) = (false, Box::pin(sleep(silence_max)));
    poll_fn(|cx| {
        let (mut came, mut left) = (false, false);
        for (future, answer) in waiting.iter_mut().zip(&mut answers) {
            let Some(polled) = future.as_mut().map(|future| future.as_mut().poll(cx)) else {
                continue;
            };
            match polled {
                Poll::Ready(value) => (came, *answer, *future) = (true, Some(value), None),
                Poll::Pending => left = true,
            }
        }
        if came {
            some = true;
            silence.as_mut().set(sleep(silence_max));
        }
        let given_up = some && left && silence.as_mut().poll(cx).is_ready();
        if given_up || !left { Poll::Ready(()) } else { Poll::Pending }
    })
    .await;
    answers
}

/// What is told of so many renewals when those of other names were answered, and others are not to
/// wait for these.
pub(super) fn not_renewed_yet(count: usize) -> Vec<Renewal> {
    let text = "not renewed yet: others of its node were, and its slot may be on the move";
    let error = Error::new(ErrorKind::Unknown, text);
    (0..count).map(|_| Renewal::Unknown(error.clone())).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn what_does_not_come_is_given_up_only_once_the_rest_has_come() {
        let after = |ms: u64| async move {
            sleep(Duration::from_millis(ms)).await;
            ms
        };
        let never = 3_600_000;
        let came = all_that_come(vec![after(never), after(300), after(600)]).await;
        assert_eq!(came, [None, Some(300), Some(600)]);
        let long = 2 * u64::try_from(SILENCE.as_millis()).unwrap_or(0);
        let came = all_that_come(vec![after(long), after(long + 1)]).await;
        assert_eq!(came, [Some(long), Some(long + 1)], "nothing came before");
        assert_eq!(all_that_come(Vec::<std::future::Ready<()>>::new()).await, []);
    }
}
