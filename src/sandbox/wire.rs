//! Messages between Skein and a sandbox process: frames of JSON over a socket, with descriptors.

use std::io::{self, IoSlice, IoSliceMut, Read as _, Write as _};
use std::mem::MaybeUninit;
use std::net::SocketAddr;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;

use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer, SendAncillaryMessage,
    SendFlags, recvmsg, sendmsg,
};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use super::layers::Layer;
use super::os_text::OsText;
use super::plan::{LandlockRules, ResourceLimits, SandboxPlan, SocketRules};

/// Descriptors that one message can carry.
const MAX_DESCRIPTORS: usize = 64;
/// Larger frames are an error of the sender.
const MAX_FRAME_BYTES: u32 = 64 << 20;

/// A message from Skein.
#[derive(Debug, Serialize, Deserialize)]
pub(super) enum Request {
    /// The first message.
    SetUp(Box<SandboxPlan>),
    /// Try each layer without starting anything. Only as the first message.
    Probe { scratch: OsText },
    /// With the descriptors of stdin, stdout and stderr.
    Start { id: u64, command: Box<CommandSpec> },
    /// To the process group of a command.
    Signal { id: u64, signal: i32 },
    /// Asks for a descriptor of something inside.
    Open { id: u64, target: InsideTarget },
}

/// Something inside a sandbox that Skein uses through a descriptor.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum InsideTarget {
    /// A connection, which may still be in progress.
    Connection(SocketAddr),
    /// The kernel's table of TCP sockets.
    PortTable(AddressVersion),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum AddressVersion {
    V4,
    V6,
}

/// A message from a sandbox process.
#[derive(Debug, Serialize, Deserialize)]
pub(super) enum Reply {
    /// With the descriptors in this order: namespaces, proxy listener, relay listeners, two listeners of git.
    Ready {
        namespaces: Vec<Namespace>,
        proxy: Option<SocketAddr>,
        relays: Vec<SocketAddr>,
        git: bool,
    },
    /// The sandbox cannot be set up. The process ends.
    Failed {
        layer: Layer,
        step: String,
        error: String,
        errno: Option<i32>,
    },
    Probed {
        layers: Box<super::layers::Layers>,
    },
    /// With a descriptor of the process, if the kernel has them. Only from a sandbox that serves a session: one with a
    /// single command would wake Skein for nothing.
    Started {
        id: u64,
    },
    StartFailed {
        id: u64,
        part: StartPart,
        errno: Option<i32>,
        error: String,
    },
    Paused {
        id: u64,
    },
    /// With the descriptor.
    Opened {
        id: u64,
    },
    OpenFailed {
        id: u64,
        errno: Option<i32>,
    },
    /// `status` as `wait` returns it.
    Ended {
        id: u64,
        status: i32,
        /// Whether the sandbox has no process left but PID 1. Only a sandbox with a single command looks.
        is_empty: bool,
    },
}

/// A message from Skein to a process that enters a sandbox.
#[derive(Debug, Serialize, Deserialize)]
pub(super) enum EntryRequest {
    /// With the descriptors of the namespaces.
    Enter(Box<EntryPlan>),
    /// Skein knows about the process, so the command may run.
    Run,
}

/// A message from a process that enters a sandbox.
#[derive(Debug, Serialize, Deserialize)]
pub(super) enum EntryReply {
    /// The process is inside and has not run the command. With a descriptor of the process, if the kernel has them.
    Entered,
    Failed {
        error: String,
    },
    /// The command has ended, and so has its process group.
    Ended,
}

/// What a process does to enter a sandbox.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct EntryPlan {
    /// The program that entered must be the one that planned it.
    pub(super) version: String,
    pub(super) namespaces: Vec<Namespace>,
    pub(super) landlock: Option<LandlockRules>,
    pub(super) sockets: SocketRules,
    pub(super) limits: ResourceLimits,
    pub(super) env: Vec<(OsText, OsText)>,
    pub(super) cwd: OsText,
}

/// The part of a start that failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum StartPart {
    WorkingFolder,
    Program,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Namespace {
    /// Owns the other namespaces.
    User,
    /// The user namespace of the commands, below the first. Root has only the first.
    InnerUser,
    Mount,
    Pid,
    Ipc,
    Network,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct CommandSpec {
    pub(super) program: OsText,
    pub(super) args: Vec<OsText>,
    pub(super) env: Vec<(OsText, OsText)>,
    pub(super) cwd: OsText,
    pub(super) terminal: TerminalUse,
}

/// How a command uses the terminal that is its stdin.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum TerminalUse {
    /// The command has no terminal.
    None,
    /// The command becomes the foreground process group of Skein's terminal.
    Foreground,
    /// The command starts a session, whose terminal is its stdin.
    Controlling,
}

/// A receiver that is gone is an error and no signal. macOS lacks this flag, but Rust programs ignore SIGPIPE anyway.
#[cfg(target_os = "linux")]
const SEND_FLAGS: SendFlags = SendFlags::NOSIGNAL;
#[cfg(not(target_os = "linux"))]
const SEND_FLAGS: SendFlags = SendFlags::empty();

/// Sends a message and its descriptors.
pub(super) fn send(
    mut socket: &UnixStream,
    message: &impl Serialize,
    descriptors: &[BorrowedFd<'_>],
) -> io::Result<()> {
    let body = serde_json::to_vec(message)?;
    let length = u32::try_from(body.len()).map_err(io::Error::other)?;
    let mut header = [0; 8];
    header[..4].copy_from_slice(&length.to_le_bytes());
    header[4..].copy_from_slice(&u32::try_from(descriptors.len()).map_err(io::Error::other)?.to_le_bytes());
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_DESCRIPTORS))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !descriptors.is_empty() && !control.push(SendAncillaryMessage::ScmRights(descriptors)) {
        return Err(io::Error::other("too many descriptors in a message"));
    }
    // The descriptors travel with the first byte, so the header must be written in one piece: eight bytes always are. The
    // body follows in the same call, so that the receiver wakes up once.
    let sent = sendmsg(socket, &[IoSlice::new(&header), IoSlice::new(&body)], &mut control, SEND_FLAGS)?;
    match sent.checked_sub(header.len()).and_then(|sent| body.get(sent..)) {
        Some(rest) => socket.write_all(rest),
        None => Err(io::ErrorKind::WriteZero.into()),
    }
}

/// Programs do not inherit the descriptors of a message. Systems without this flag have no sandbox, so that their
/// messages have none.
#[cfg(target_os = "linux")]
const RECEIVE_FLAGS: RecvFlags = RecvFlags::CMSG_CLOEXEC.union(RecvFlags::WAITALL);
#[cfg(not(target_os = "linux"))]
const RECEIVE_FLAGS: RecvFlags = RecvFlags::WAITALL;

/// Receives a message and its descriptors. Fails with `UnexpectedEof` if the other side is gone.
pub(super) fn receive<T: DeserializeOwned>(mut socket: &UnixStream) -> io::Result<(T, Vec<OwnedFd>)> {
    let mut header = [0; 8];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_DESCRIPTORS))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let received = loop {
        match recvmsg(socket.as_fd(), &mut [IoSliceMut::new(&mut header)], &mut control, RECEIVE_FLAGS) {
            Err(rustix::io::Errno::INTR) => {}
            result => break result?,
        }
    };
    if received.bytes != header.len() {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    if received.flags.contains(ReturnFlags::CTRUNC) {
        return Err(io::Error::other("a message lost descriptors"));
    }
    let mut descriptors = Vec::new();
    for message in control.drain() {
        if let RecvAncillaryMessage::ScmRights(rights) = message {
            descriptors.extend(rights);
        }
    }
    let [a, b, c, d, e, f, g, h] = header;
    let length = u32::from_le_bytes([a, b, c, d]);
    if length > MAX_FRAME_BYTES || u32::from_le_bytes([e, f, g, h]) as usize != descriptors.len() {
        return Err(io::ErrorKind::InvalidData.into());
    }
    let mut body = vec![0; length as usize];
    socket.read_exact(&mut body)?;
    Ok((serde_json::from_slice(&body)?, descriptors))
}

#[cfg(test)]
mod tests {
    use std::ffi::OsString;
    use std::os::unix::ffi::OsStringExt as _;

    use super::*;

    #[test]
    fn a_message_carries_descriptors_and_any_bytes() {
        let (here, there) = UnixStream::pair().unwrap();
        let odd = OsText(OsString::from_vec(b"a\xff".to_vec()));
        let message = Request::Probe { scratch: odd.clone() };
        send(&here, &message, &[std::io::stdin().as_fd(), std::io::stdout().as_fd()]).unwrap();
        let (received, descriptors) = receive::<Request>(&there).unwrap();
        assert!(matches!(received, Request::Probe { scratch } if scratch == odd));
        assert_eq!(descriptors.len(), 2);
        drop(here);
        assert_eq!(receive::<Request>(&there).unwrap_err().kind(), io::ErrorKind::UnexpectedEof);
    }

    #[test]
    fn a_frame_that_is_too_long_is_not_read() {
        for (length, error) in
            [(MAX_FRAME_BYTES, io::ErrorKind::UnexpectedEof), (MAX_FRAME_BYTES + 1, io::ErrorKind::InvalidData)]
        {
            let (mut here, there) = UnixStream::pair().unwrap();
            here.write_all(&[length.to_le_bytes(), [0; 4]].concat()).unwrap();
            drop(here);
            assert_eq!(receive::<Request>(&there).unwrap_err().kind(), error, "{length}");
        }
    }
}
