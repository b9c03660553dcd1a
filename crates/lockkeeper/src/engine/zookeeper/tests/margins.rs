//! What a session can give, of what its holders rely on.

use super::*;
use crate::Locks;

#[test]
fn a_margin_that_the_session_cannot_give_is_refused_before_anything_is_sent() {
    run(async {
        let place = Place::new().await;
        // A server of half a second's ticks gives 10 s at most.
        let locks = Locks::open(&place.url("session_timeout=60s")).await.unwrap();
        assert_eq!(locks.describe().expiry.session(), Some(Duration::from_secs(10)));
        let refused = locks.mutex("x").lock().margin(Duration::from_secs(4)).await.unwrap_err();
        assert_eq!(refused.kind(), crate::ErrorKind::InvalidArgument);
        assert!(refused.message().contains("third of the session"), "{refused}");
        assert!(locks.mutex("x").lock().margin(Duration::from_secs(3)).await.is_ok());
    });
}

#[test]
fn a_margin_that_the_drift_allowance_does_not_leave_is_refused_also_the_default() {
    run(async {
        let place = Place::new().await;
        let locks = Locks::open(&place.url("session_timeout=8s&drift=32%25")).await.unwrap();
        assert!(locks.mutex("x").lock().await.unwrap().release().await.is_clean());
        let locks = Locks::open(&place.url("session_timeout=8s&drift=50%25")).await.unwrap();
        let refused = locks.mutex("x").lock().await.unwrap_err();
        assert_eq!(refused.kind(), crate::ErrorKind::InvalidArgument);
        let why = "drift=50% leaves a session of 8s no margin of 1.6s: lower drift or the margin";
        assert!(refused.message().contains(why), "{refused}");
        assert!(
            locks
                .mutex("x")
                .lock()
                .margin(Duration::ZERO)
                .await
                .unwrap()
                .release()
                .await
                .is_clean()
        );
        // A fixed hold is not renewed: it takes what there is.
        assert!(locks.mutex("x").lock().no_renew().await.is_ok());
    });
}
