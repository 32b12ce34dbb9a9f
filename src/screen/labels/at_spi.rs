//! Finds elements of windows over AT-SPI, the D-Bus interface of assistive technology.

use std::time::Duration;

use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::time::{Instant, timeout};
use zbus::connection::Builder;
use zbus::{Connection, DynamicType, OwnedObjectPath, OwnedVariant, Type};

use super::{ANSWER_LIMIT, LabelError, LabelledElement};
use crate::screen::ScreenArea;

const REGISTRY: &str = "org.a11y.atspi.Registry";
const ROOT: &str = "/org/a11y/atspi/accessible/root";
const ACCESSIBLE: &str = "org.a11y.atspi.Accessible";
const COMPONENT: &str = "org.a11y.atspi.Component";
const PROPERTIES: &str = "org.freedesktop.DBus.Properties";
/// Time for the whole search.
const SEARCH_LIMIT: Duration = Duration::from_secs(15);
/// Elements of one search, children of one element, and levels below a program.
const MAX_ELEMENTS: usize = 5_000;
const MAX_CHILDREN: usize = 500;
const MAX_DEPTH: usize = 60;
/// The number of the state that an element is on the screen.
const SHOWING: usize = 25;
/// Positions count from the corner of the screen.
const SCREEN_POSITIONS: u32 = 0;
/// Roles that contain others. A click in their middle hits something else.
const CONTAINERS: [&str; 11] = [
    "application",
    "desktop frame",
    "document frame",
    "document web",
    "filler",
    "frame",
    "panel",
    "root pane",
    "scroll pane",
    "viewport",
    "window",
];

/// A program on the bus, and an element in it.
type ElementId = (String, String);

/// Returns the elements on the screen with this label, in any case. If there are none, returns those whose label contains
/// it. `bus` is the address of the session's D-Bus.
pub async fn find_label(bus: &str, label: &str) -> Result<Vec<LabelledElement>, LabelError> {
    let session = connect(bus).await?;
    let launcher = ("org.a11y.Bus".to_owned(), "/org/a11y/bus".to_owned());
    let (address,): (String,) = call(&session, &launcher, "org.a11y.Bus", "GetAddress", &()).await?;
    Ok(search(&connect(&address).await?, &label.trim().to_lowercase()).await)
}

fn no_bus(error: zbus::Error) -> LabelError {
    LabelError::NoBus(error.to_string())
}

async fn connect(address: &str) -> Result<Connection, LabelError> {
    let connected = timeout(ANSWER_LIMIT, Builder::address(address).build()).await;
    connected.map_err(|_| LabelError::Silent)?.map_err(no_bus)
}

async fn call<R>(
    bus: &Connection,
    (program, path): &ElementId,
    interface: &str,
    method: &str,
    body: &(impl Serialize + DynamicType),
) -> Result<R, LabelError>
where
    R: DeserializeOwned + Type,
{
    let answer = bus.call_method(Some(program.as_str()), path.as_str(), Some(interface), method, body);
    let reply = timeout(ANSWER_LIMIT, answer).await.map_err(|_| LabelError::Silent)?.map_err(no_bus)?;
    let body = reply.body();
    body.deserialize().map_err(no_bus)
}

/// Goes through the elements of all programs, parents first. Programs that do not answer are passed over.
async fn search(bus: &Connection, wanted: &str) -> Vec<LabelledElement> {
    let deadline = Instant::now() + SEARCH_LIMIT;
    let (mut exact, mut partial) = (Vec::new(), Vec::new());
    let mut open: Vec<(ElementId, usize)> = vec![((REGISTRY.to_owned(), ROOT.to_owned()), 0)];
    let mut seen = 0;
    while let Some((element, depth)) = open.pop() {
        if seen == MAX_ELEMENTS || Instant::now() > deadline {
            break;
        }
        seen += 1;
        // The registry and the programs themselves are not on the screen.
        if depth > 1 {
            let Some(label) = visible_label(bus, &element).await else { continue };
            let lower = label.to_lowercase();
            let found = if lower == wanted { &mut exact } else { &mut partial };
            if lower.contains(wanted)
                && let Some(element) = describe(bus, &element, label).await
            {
                add(found, element);
            }
        }
        if depth > MAX_DEPTH {
            continue;
        }
        let children = call::<(Vec<(String, OwnedObjectPath)>,)>(bus, &element, ACCESSIBLE, "GetChildren", &()).await;
        let Ok((mut children,)) = children else { continue };
        children.truncate(MAX_CHILDREN);
        let below = children.into_iter().rev().map(|(program, path)| ((program, path.as_str().to_owned()), depth + 1));
        open.extend(below);
    }
    if exact.is_empty() { partial } else { exact }
}

/// Returns the label of an element, which can be empty. `None` if the element is not on the screen.
async fn visible_label(bus: &Connection, element: &ElementId) -> Option<String> {
    let (states,): (Vec<u32>,) = call(bus, element, ACCESSIBLE, "GetState", &()).await.ok()?;
    if !has_state(&states, SHOWING) {
        return None;
    }
    let (label,): (OwnedVariant,) = call(bus, element, PROPERTIES, "Get", &(ACCESSIBLE, "Name")).await.ok()?;
    let label = String::try_from(label).ok()?;
    Some(label.trim().to_owned())
}

/// Returns whether a set of states, 32 in each word, has this one.
fn has_state(states: &[u32], state: usize) -> bool {
    states.get(state / 32).is_some_and(|word| (word >> (state % 32)) & 1 == 1)
}

/// Returns where an element is and what it is. `None` if a click on it makes no sense.
async fn describe(bus: &Connection, element: &ElementId, label: String) -> Option<LabelledElement> {
    let (role,): (String,) = call(bus, element, ACCESSIBLE, "GetRoleName", &()).await.ok()?;
    if CONTAINERS.contains(&role.as_str()) {
        return None;
    }
    let (extents,): ((i32, i32, i32, i32),) =
        call(bus, element, COMPONENT, "GetExtents", &(SCREEN_POSITIONS,)).await.ok()?;
    let (x, y, width, height) = extents;
    let size = |length: i32| u32::try_from(length).ok().filter(|length| *length > 0);
    Some(LabelledElement { label, role, area: ScreenArea { x, y, width: size(width)?, height: size(height)? } })
}

/// Adds an element, unless it is the text inside one with the same label.
fn add(found: &mut Vec<LabelledElement>, element: LabelledElement) {
    let center = element.area.center();
    let is_inside = |other: &LabelledElement| other.label == element.label && other.area.contains(center);
    if !found.iter().any(is_inside) {
        found.push(element);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn element(label: &str, x: i32, y: i32) -> LabelledElement {
        let area = ScreenArea { x, y, width: 40, height: 20 };
        LabelledElement { label: label.to_owned(), role: "push button".to_owned(), area }
    }

    #[test]
    fn the_text_of_a_button_is_not_a_second_button() {
        let mut found = Vec::new();
        for one in [element("OK", 0, 0), element("OK", 5, 5), element("OK", 100, 0), element("No", 0, 0)] {
            add(&mut found, one);
        }
        assert_eq!(found, [element("OK", 0, 0), element("OK", 100, 0), element("No", 0, 0)]);
    }

    #[test]
    fn states_are_bits_of_words() {
        assert!(has_state(&[1 << 25, 0], SHOWING) && has_state(&[0, 2], 33));
        assert!(!has_state(&[!(1 << 25), 0], SHOWING) && !has_state(&[], SHOWING) && !has_state(&[1], 33));
    }

    #[tokio::test]
    async fn a_machine_without_a_bus_says_so() {
        let error = find_label("unix:path=/nonexistent/bus", "OK").await.unwrap_err().to_string();
        assert!(error.starts_with("programs do not describe their windows here"), "{error}");
        assert!(error.ends_with("Give `x` and `y` instead"), "{error}");
    }
}
