//! Stores the logins of browsers with a token, so that they outlast a restart of the server.
//!
//! Invariant: the store has the SHA-256 of a cookie, never the cookie.

use jiff::{SignedDuration, Timestamp};

use super::{TokenState, TokenStore, hash};
use crate::principal::TokenGrant;
use crate::store::StoreError;

/// How far the clocks of replicas may differ. A later use than that comes from a clock that was ahead, and would prolong
/// the login.
const CLOCK_DIFFERENCE: SignedDuration = SignedDuration::from_mins(5);

/// A login of a browser.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BrowserLogin {
    pub grant: TokenGrant,
    /// The token that each form of the browser repeats.
    pub csrf: String,
    /// The last use that was stored.
    pub used: Timestamp,
}

impl TokenStore {
    /// Stores the login of a cookie with the token `id`, used just now.
    pub async fn put_login(&self, cookie: &str, id: &str, csrf: &str) -> Result<(), StoreError> {
        let (cookie, id, csrf) = (hash(cookie), id.to_owned(), csrf.to_owned());
        self.work(move |rows| rows.put_login(&cookie, &id, &csrf, Timestamp::now().as_millisecond())).await
    }

    /// Notes that a cookie was used just now.
    pub async fn touch_login(&self, cookie: &str) -> Result<(), StoreError> {
        let cookie = hash(cookie);
        self.work(move |rows| rows.touch_login(&cookie, Timestamp::now().as_millisecond())).await
    }

    /// Returns the login of a cookie. `None` if there is none, it was last used before `oldest` or
    /// in the future, or its token has ended. Removes one of the future.
    pub async fn find_login(&self, cookie: &str, oldest: Timestamp) -> Result<Option<BrowserLogin>, StoreError> {
        let cookie = hash(cookie);
        self.work(move |rows| {
            let Some(login) = rows.find_login(&cookie, oldest.as_millisecond())? else { return Ok(None) };
            if login.used_at > latest_use() {
                rows.remove_logins(Some(cookie.as_slice()), oldest.as_millisecond(), latest_use())?;
                return Ok(None);
            }
            let used = Timestamp::from_millisecond(login.used_at).unwrap_or(Timestamp::MIN);
            let token = rows.find(&login.token)?.and_then(|columns| columns.to_token());
            let active = token.filter(|token| token.state == TokenState::Active);
            Ok(active.map(|token| BrowserLogin { grant: token.grant, csrf: login.csrf, used }))
        })
        .await
    }

    /// Returns whether a cookie has a login that was not removed, with a token of any kind: a JWT is not among the
    /// stored tokens.
    pub async fn has_login(&self, cookie: &str) -> Result<bool, StoreError> {
        let cookie = hash(cookie);
        self.work(move |rows| Ok(rows.find_login(&cookie, i64::MIN)?.is_some())).await
    }

    /// Removes the login of a cookie, and all that were last used before `oldest` or in the future.
    pub async fn remove_logins(&self, cookie: Option<&str>, oldest: Timestamp) -> Result<(), StoreError> {
        let cookie = cookie.map(hash);
        self.work(move |rows| {
            let cookie = cookie.as_ref().map(<[u8; 32]>::as_slice);
            rows.remove_logins(cookie, oldest.as_millisecond(), latest_use())
        })
        .await
    }
}

/// Returns the latest time of a use that counts.
fn latest_use() -> i64 {
    Timestamp::now().checked_add(CLOCK_DIFFERENCE).unwrap_or(Timestamp::MAX).as_millisecond()
}

#[cfg(test)]
mod tests {
    use super::super::NewToken;
    use super::*;
    use crate::principal::{Principal, TokenLimits};

    #[tokio::test]
    async fn a_login_lasts_until_it_is_removed_unused_or_its_token_ends() {
        let folder = tempfile::tempdir().unwrap();
        let tokens = TokenStore::open(folder.path()).unwrap();
        let principal = Principal::new("ana").unwrap();
        let new = NewToken { principal, limits: TokenLimits::default(), expires: None };
        let token = tokens.create(new).await.unwrap();
        let begun = Timestamp::from_millisecond(Timestamp::now().as_millisecond()).unwrap();
        for cookie in ["one", "two"] {
            tokens.put_login(cookie, &token.id, "csrf").await.unwrap();
        }
        drop(tokens);
        let tokens = TokenStore::open(folder.path()).unwrap();
        let (past, future) = (Timestamp::UNIX_EPOCH, Timestamp::now() + SignedDuration::from_secs(60));
        let found = tokens.find_login("one", past).await.unwrap().unwrap();
        assert_eq!((found.grant.principal.name(), found.csrf.as_str()), ("ana", "csrf"));
        assert!(found.used >= begun && found.used <= Timestamp::now());
        assert_eq!(tokens.find_login("one", future).await.unwrap(), None, "not used since");
        assert_eq!(tokens.find_login("other", past).await.unwrap(), None);
        tokens.touch_login("two").await.unwrap();
        tokens.remove_logins(Some("one"), past).await.unwrap();
        assert_eq!(tokens.find_login("one", past).await.unwrap(), None);
        assert!(tokens.find_login("two", past).await.unwrap().is_some());
        assert!(!tokens.has_login("one").await.unwrap() && tokens.has_login("two").await.unwrap());
        tokens.revoke(&token.id).await.unwrap();
        assert_eq!(tokens.find_login("two", past).await.unwrap(), None);
    }

    #[tokio::test]
    async fn a_login_of_a_clock_that_was_ahead_ends() {
        let folder = tempfile::tempdir().unwrap();
        let tokens = TokenStore::open(folder.path()).unwrap();
        let new = NewToken { principal: Principal::new("ana").unwrap(), limits: TokenLimits::default(), expires: None };
        let token = tokens.create(new).await.unwrap();
        let minutes = |count: i64| (Timestamp::now() + SignedDuration::from_mins(count)).as_millisecond();
        for (cookie, used) in [("near", minutes(4)), ("far", minutes(60)), ("swept", minutes(60))] {
            let (hash, id) = (hash(cookie), token.id.clone());
            tokens.work(move |rows| rows.put_login(&hash, &id, "csrf", used)).await.unwrap();
        }
        assert!(tokens.find_login("near", Timestamp::UNIX_EPOCH).await.unwrap().is_some());
        assert_eq!(tokens.find_login("far", Timestamp::UNIX_EPOCH).await.unwrap(), None);
        assert!(!tokens.has_login("far").await.unwrap(), "it does not become valid later");
        tokens.remove_logins(None, Timestamp::UNIX_EPOCH).await.unwrap();
        assert!(!tokens.has_login("swept").await.unwrap() && tokens.has_login("near").await.unwrap());
    }
}
