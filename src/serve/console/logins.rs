//! Keeps the logins of browsers: their cookies, the one-time codes of `skein console`, and failed attempts.
//!
//! Invariant: a code works once and for 60 seconds. A cookie ends with its token, at the log-out, and after an hour
//! without use.

use std::collections::{HashMap, VecDeque};
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio_util::sync::CancellationToken;

use super::super::authenticator::ActiveToken;

/// How long a code works.
const CODE_TIME: Duration = Duration::from_secs(60);
/// How long a cookie works without a request.
pub(super) const IDLE_TIME: Duration = Duration::from_secs(60 * 60);
/// How often the use of a cookie is stored.
const STORE_INTERVAL: Duration = Duration::from_secs(60);
/// How often the store of several replicas is asked whether another one has ended a login.
pub(super) const CHECK_INTERVAL: Duration = Duration::from_secs(2);
/// The time over which failed attempts are counted.
const ATTEMPT_WINDOW: Duration = Duration::from_secs(60);
/// Failed attempts of one address in that time. Further ones are refused unread.
const MAX_ATTEMPTS: usize = 5;
/// Addresses with failed attempts that are remembered. The one whose last attempt is the oldest makes room for another.
const MAX_ADDRESSES: usize = 10_000;
/// Logins at once. The one that was unused for the longest time makes room for a new one.
const MAX_LOGINS: usize = 1_000;
/// Pages that all event streams of a login follow together.
const MAX_FOLLOWED: usize = 16;
/// Random bytes of a cookie, a code and a CSRF token.
const SECRET_BYTES: usize = 32;

/// The login of one browser.
#[derive(Debug)]
pub(in crate::serve) struct Login {
    pub(in crate::serve) token: Arc<ActiveToken>,
    /// Each POST repeats it, so that no other site can send one.
    pub(super) csrf: String,
    /// Cancelled when the login ends. Event streams of the browser end with it.
    pub(super) ended: CancellationToken,
    /// A place for each page that its event streams may follow.
    followed: Arc<Semaphore>,
}

impl Login {
    fn new(token: Arc<ActiveToken>, csrf: String) -> Self {
        Self { token, csrf, ended: CancellationToken::new(), followed: Arc::new(Semaphore::new(MAX_FOLLOWED)) }
    }

    /// Takes a place for a page that an event stream follows, until the permit is dropped. `None` if all are taken: a
    /// follower looks again and again, which no limit of requests counts.
    pub(super) fn follow_page(&self) -> Option<OwnedSemaphorePermit> {
        Arc::clone(&self.followed).try_acquire_owned().ok()
    }
}

/// Whether a request keeps its login alive.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum LoginUse {
    /// A person acts.
    Active,
    /// A script of an open page asks by itself.
    Passive,
}

/// The logins of this process. Those with a token are also in the store, and outlast a restart.
#[derive(Debug, Default)]
pub(in crate::serve) struct LoginTable {
    state: Mutex<LoginRecords>,
}

#[derive(Debug, Default)]
struct LoginRecords {
    /// By the cookie.
    logins: HashMap<String, KnownLogin>,
    /// The codes that were not used yet, with the times of their creation.
    codes: HashMap<String, Instant>,
    /// The times of the failed attempts of each address, oldest first.
    attempts: HashMap<IpAddr, VecDeque<Instant>>,
}

#[derive(Debug)]
struct KnownLogin {
    login: Arc<Login>,
    used: Instant,
    /// When the store last learned of its use.
    stored: Instant,
    /// When the store was last known to have it.
    checked: Instant,
}

impl KnownLogin {
    fn is_over(&self, now: Instant) -> bool {
        self.login.token.ended.is_cancelled() || self.is_idle(now)
    }

    fn is_idle(&self, now: Instant) -> bool {
        now.duration_since(self.used) >= IDLE_TIME
    }
}

impl LoginTable {
    /// Returns a new one-time code. Fails if the system gives no random numbers.
    pub(in crate::serve) fn create_code(&self, now: Instant) -> Result<String, getrandom::Error> {
        let code = random_secret()?;
        let mut state = self.state();
        state.codes.retain(|_, created| now.duration_since(*created) < CODE_TIME);
        state.codes.insert(code.clone(), now);
        Ok(code)
    }

    /// Uses a code up. Returns false if it is unknown, used or too old.
    pub(super) fn take_code(&self, code: &str, now: Instant) -> bool {
        self.state().codes.remove(code).is_some_and(|created| now.duration_since(created) < CODE_TIME)
    }

    /// Adds a login with a new cookie and returns both. Fails if the system gives no random numbers.
    pub(super) fn add(&self, token: Arc<ActiveToken>, now: Instant) -> Result<(String, Arc<Login>), getrandom::Error> {
        let (cookie, csrf) = (random_secret()?, random_secret()?);
        let login = self.restore(&cookie, token, csrf, now, now);
        Ok((cookie, login))
    }

    /// Adds the login of a cookie that the store has. `used` is the last use that it knows of.
    pub(super) fn restore(
        &self,
        cookie: &str,
        token: Arc<ActiveToken>,
        csrf: String,
        used: Instant,
        now: Instant,
    ) -> Arc<Login> {
        let login = Arc::new(Login::new(token, csrf));
        let mut state = self.state();
        // Otherwise, logins that are over wait until they are removed from the store too.
        if state.logins.len() >= MAX_LOGINS {
            state.remove_ended(now);
        }
        if state.logins.len() >= MAX_LOGINS {
            let oldest = state.logins.iter().min_by_key(|(_, known)| known.used).map(|(cookie, _)| cookie.clone());
            oldest.iter().for_each(|cookie| state.remove(cookie));
        }
        // Two requests may restore one login at once: the first one stays.
        let new = KnownLogin { login, used, stored: used, checked: now };
        Arc::clone(&state.logins.entry(cookie.to_owned()).or_insert(new).login)
    }

    /// Returns true if the store should learn now that the cookie is used.
    pub(super) fn take_unstored_use(&self, cookie: &str, now: Instant) -> bool {
        let mut state = self.state();
        let known =
            state.logins.get_mut(cookie).filter(|known| known.used.duration_since(known.stored) >= STORE_INTERVAL);
        known.map(|known| known.stored = now).is_some()
    }

    /// Returns true if the store should be asked now whether it still has the login of a cookie.
    pub(super) fn take_check(&self, cookie: &str, now: Instant) -> bool {
        let mut state = self.state();
        let is_old = |known: &&mut KnownLogin| now.duration_since(known.checked) >= CHECK_INTERVAL;
        let known = state.logins.get_mut(cookie).filter(is_old);
        known.map(|known| known.checked = now).is_some()
    }

    /// Returns the cookies of the stored logins that a request or an event stream uses at the moment.
    pub(super) fn cookies_in_use(&self) -> Vec<String> {
        let is_used =
            |known: &KnownLogin| Arc::strong_count(&known.login) > 1 && !known.login.token.grant.principal().is_local();
        let state = self.state();
        state.logins.iter().filter(|(_, known)| is_used(known)).map(|(cookie, _)| cookie.clone()).collect()
    }

    /// Returns the cookies that were not used for too long, and are still known.
    pub(super) fn idle_cookies(&self, now: Instant) -> Vec<String> {
        let state = self.state();
        state.logins.iter().filter(|(_, known)| known.is_idle(now)).map(|(cookie, _)| cookie.clone()).collect()
    }

    /// Returns whether a cookie is known and was not used for too long.
    pub(super) fn is_idle(&self, cookie: &str, now: Instant) -> bool {
        self.state().logins.get(cookie).is_some_and(|known| known.is_idle(now))
    }

    /// Returns the login of a cookie. `None` if there is none, or it has ended.
    pub(super) fn find(&self, cookie: &str, login_use: LoginUse, now: Instant) -> Option<Arc<Login>> {
        let mut state = self.state();
        let known = state.logins.get_mut(cookie)?;
        if known.is_over(now) {
            state.remove(cookie);
            return None;
        }
        if login_use == LoginUse::Active {
            known.used = now;
        }
        Some(Arc::clone(&known.login))
    }

    /// Ends a login.
    pub(super) fn remove(&self, cookie: &str) {
        self.state().remove(cookie);
    }

    /// Ends the logins that are over, so that their event streams end too.
    pub(super) fn sweep(&self, now: Instant) {
        self.state().remove_ended(now);
    }

    /// Counts a failed attempt.
    pub(super) fn count_failure(&self, peer: IpAddr, now: Instant) {
        let mut state = self.state();
        if !state.attempts.contains_key(&peer) {
            state.make_room_for_attempts(now);
        }
        state.attempts.entry(peer).or_default().push_back(now);
    }

    /// Returns how long this address must wait before its next attempt. `None` if it need not wait.
    pub(super) fn wait_time(&self, peer: IpAddr, now: Instant) -> Option<Duration> {
        let mut state = self.state();
        let times = state.attempts.get_mut(&peer)?;
        times.retain(|time| now.duration_since(*time) < ATTEMPT_WINDOW);
        let first = times.front().filter(|_| times.len() >= MAX_ATTEMPTS)?;
        Some(ATTEMPT_WINDOW.saturating_sub(now.duration_since(*first)))
    }

    fn state(&self) -> MutexGuard<'_, LoginRecords> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl LoginRecords {
    fn remove(&mut self, cookie: &str) {
        if let Some(known) = self.logins.remove(cookie) {
            known.login.ended.cancel();
        }
    }

    /// Forgets attempts that are too old to count, and then the oldest ones, if there are too many addresses.
    fn make_room_for_attempts(&mut self, now: Instant) {
        if self.attempts.len() < MAX_ADDRESSES {
            return;
        }
        self.attempts.retain(|_, times| times.back().is_some_and(|last| now.duration_since(*last) < ATTEMPT_WINDOW));
        while self.attempts.len() >= MAX_ADDRESSES {
            let oldest = self.attempts.iter().min_by_key(|(_, times)| times.back().copied());
            let Some(oldest) = oldest.map(|(address, _)| *address) else { return };
            self.attempts.remove(&oldest);
        }
    }

    fn remove_ended(&mut self, now: Instant) {
        self.logins.retain(|_, known| {
            let is_over = known.is_over(now);
            if is_over {
                known.login.ended.cancel();
            }
            !is_over
        });
    }
}

/// Returns 256 random bits in hexadecimal.
fn random_secret() -> Result<String, getrandom::Error> {
    let mut bytes = [0_u8; SECRET_BYTES];
    getrandom::fill(&mut bytes)?;
    Ok(bytes.iter().map(|byte| format!("{byte:02x}")).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    const PEER: IpAddr = IpAddr::V4(std::net::Ipv4Addr::LOCALHOST);

    #[test]
    fn a_code_works_once_and_for_a_minute() {
        let (table, now) = (LoginTable::default(), Instant::now());
        let code = table.create_code(now).unwrap();
        assert!(!table.take_code("other", now));
        assert!(table.take_code(&code, now + Duration::from_secs(59)));
        assert!(!table.take_code(&code, now), "used twice");
        let late = table.create_code(now).unwrap();
        assert!(!table.take_code(&late, now + CODE_TIME));
    }

    #[test]
    fn a_cookie_ends_after_an_hour_without_use() {
        let (table, now) = (LoginTable::default(), Instant::now());
        let cookie = table.add(Arc::new(ActiveToken::local()), now).unwrap().0;
        let half = IDLE_TIME / 2;
        let login = table.find(&cookie, LoginUse::Active, now + half).unwrap();
        assert!(table.find(&cookie, LoginUse::Passive, now + half * 2).is_some());
        assert!(!login.ended.is_cancelled());
        assert!(table.find(&cookie, LoginUse::Active, now + half * 3).is_none(), "a passive request does not count");
        assert!(login.ended.is_cancelled());
    }

    #[test]
    fn a_cookie_without_use_is_known_until_it_is_removed() {
        let (table, now) = (LoginTable::default(), Instant::now());
        let cookie = table.add(Arc::new(ActiveToken::local()), now).unwrap().0;
        assert!(!table.is_idle(&cookie, now + IDLE_TIME / 2));
        assert_eq!(table.idle_cookies(now + IDLE_TIME / 2), [""; 0]);
        // Another login does not make it unknown, because the store may still have it.
        let other = table.add(Arc::new(ActiveToken::local()), now + IDLE_TIME).unwrap().0;
        assert!(table.is_idle(&cookie, now + IDLE_TIME) && !table.is_idle(&other, now + IDLE_TIME));
        assert_eq!(table.idle_cookies(now + IDLE_TIME), [cookie.as_str()]);
        table.sweep(now + IDLE_TIME);
        assert!(!table.is_idle(&cookie, now + IDLE_TIME));
    }

    #[test]
    fn passive_requests_do_not_prolong_a_restored_login() {
        let (table, used) = (LoginTable::default(), Instant::now());
        let restore = |cookie: &str| {
            table.restore(cookie, Arc::new(ActiveToken::local()), "csrf".to_owned(), used, used + IDLE_TIME / 2)
        };
        let login = restore("passive");
        assert!(table.find("passive", LoginUse::Passive, used + IDLE_TIME / 2).is_some());
        assert!(table.find("passive", LoginUse::Passive, used + IDLE_TIME).is_none());
        assert!(login.ended.is_cancelled());
        restore("active");
        assert!(table.find("active", LoginUse::Active, used + IDLE_TIME / 2).is_some());
        assert!(table.take_unstored_use("active", used + IDLE_TIME / 2), "the store learns of the use");
        assert!(table.find("active", LoginUse::Passive, used + IDLE_TIME).is_some());
    }

    #[test]
    fn the_store_is_asked_again_about_a_login_every_two_seconds() {
        let (table, now) = (LoginTable::default(), Instant::now());
        let cookie = table.add(Arc::new(ActiveToken::local()), now).unwrap().0;
        assert!(!table.take_check(&cookie, now + CHECK_INTERVAL / 2));
        assert!(table.take_check(&cookie, now + CHECK_INTERVAL));
        assert!(!table.take_check(&cookie, now + CHECK_INTERVAL), "once is enough");
        assert!(table.take_check(&cookie, now + CHECK_INTERVAL * 2));
    }

    #[test]
    fn a_cookie_ends_with_its_token_and_at_the_log_out() {
        let (table, now) = (LoginTable::default(), Instant::now());
        let token = Arc::new(ActiveToken::local());
        let cookies = [0, 1].map(|_| table.add(Arc::clone(&token), now).unwrap().0);
        table.remove(&cookies[0]);
        assert!(table.find(&cookies[0], LoginUse::Active, now).is_none());
        let login = table.find(&cookies[1], LoginUse::Active, now).unwrap();
        token.ended.cancel();
        table.sweep(now);
        assert!(login.ended.is_cancelled() && table.find(&cookies[1], LoginUse::Active, now).is_none());
    }

    #[test]
    fn five_failures_a_minute_make_an_address_wait() {
        let (table, now) = (LoginTable::default(), Instant::now());
        for second in 0..5 {
            assert_eq!(table.wait_time(PEER, now + Duration::from_secs(second)), None);
            table.count_failure(PEER, now + Duration::from_secs(second));
        }
        assert_eq!(table.wait_time(PEER, now + Duration::from_secs(10)), Some(Duration::from_secs(50)));
        let other = IpAddr::V4(std::net::Ipv4Addr::new(10, 0, 0, 1));
        assert_eq!(table.wait_time(other, now + Duration::from_secs(10)), None);
        assert_eq!(table.wait_time(PEER, now + ATTEMPT_WINDOW), None);
    }

    #[test]
    fn the_login_unused_for_longest_makes_room() {
        let (table, now) = (LoginTable::default(), Instant::now());
        let token = Arc::new(ActiveToken::local());
        let times = (0..=MAX_LOGINS).map(|number| now + Duration::from_millis(number.try_into().unwrap()));
        let logins: Vec<_> = times.map(|time| table.add(Arc::clone(&token), time).unwrap()).collect();
        assert_eq!(table.state().logins.len(), MAX_LOGINS);
        assert!(logins[0].1.ended.is_cancelled() && table.find(&logins[0].0, LoginUse::Passive, now).is_none());
        assert!(logins[1..].iter().all(|(_, login)| !login.ended.is_cancelled()));
    }

    #[test]
    fn the_streams_of_a_login_follow_a_limited_number_of_pages() {
        let (table, now) = (LoginTable::default(), Instant::now());
        let [login, other] = [0, 1].map(|_| table.add(Arc::new(ActiveToken::local()), now).unwrap().1);
        let mut places: Vec<_> = (0..MAX_FOLLOWED).map(|_| login.follow_page().expect("a free place")).collect();
        assert!(login.follow_page().is_none());
        assert!(other.follow_page().is_some(), "each login has its own places");
        places.pop();
        assert!(login.follow_page().is_some());
    }

    #[test]
    fn failed_attempts_of_many_addresses_take_limited_memory() {
        let (table, now) = (LoginTable::default(), Instant::now());
        let address = |number: u32| IpAddr::V4(std::net::Ipv4Addr::from_bits(number));
        let at = |millis: u64| now + Duration::from_millis(millis);
        let count = u32::try_from(MAX_ADDRESSES).unwrap();
        (0..5).for_each(|_| table.count_failure(address(1), at(0)));
        for number in 2..=count {
            table.count_failure(address(number), at(u64::from(number)));
        }
        (0..5).for_each(|_| table.count_failure(address(2), at(20_000)));
        assert_eq!(table.state().attempts.len(), MAX_ADDRESSES);
        table.count_failure(address(count + 1), at(20_001));
        assert_eq!(table.state().attempts.len(), MAX_ADDRESSES);
        assert!(table.wait_time(address(1), at(20_002)).is_none(), "the oldest one made room");
        assert!(table.wait_time(address(2), at(20_002)).is_some(), "a later one still waits");
    }
}
