//! Ports of servers inside: which are forwarded, and to where.

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

use super::*;

struct Gate(Result<(), ConsentRefusal>, std::sync::atomic::AtomicUsize);

impl PortGate for Gate {
    fn ask(&self, _: u16) -> BoxFuture<'_, Result<(), ConsentRefusal>> {
        self.1.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        Box::pin(async { self.0.clone() })
    }
}

/// A network inside whose only server greets each client.
struct Inside(SocketAddr);

impl InsideNetwork for Inside {
    fn dial(&self, _: u16) -> BoxFuture<'_, io::Result<TcpStream>> {
        Box::pin(TcpStream::connect(self.0))
    }
}

async fn greeting_server() -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    TaskScope::new().spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            stream.write_all(b"hello").await.unwrap();
        }
    });
    address
}

async fn forwards(access: PortAccess, answer: Result<(), ConsentRefusal>) -> (PortForwards, Arc<Gate>, SocketAddr) {
    let server = greeting_server().await;
    let gate = Arc::new(Gate(answer, std::sync::atomic::AtomicUsize::new(0)));
    (PortForwards::new(access, Arc::clone(&gate) as Arc<dyn PortGate>, Arc::new(Inside(server))), gate, server)
}

#[tokio::test]
async fn a_port_is_forwarded_after_one_question() {
    let (forwards, gate, server) = forwards(PortAccess::Ask, Ok(())).await;
    // The port is in use outside, so another one is chosen.
    let address = forwards.forward(server.port()).await.unwrap();
    assert!(address.ip().is_loopback() && address != server);
    assert_eq!(forwards.forward(server.port()).await.unwrap(), address);
    assert_eq!(gate.1.load(std::sync::atomic::Ordering::Relaxed), 1);
    let mut text = String::new();
    TcpStream::connect(address).await.unwrap().read_to_string(&mut text).await.unwrap();
    assert_eq!(text, "hello");
    forwards.stop().await;
    assert!(TcpStream::connect(address).await.is_err());
}

#[tokio::test]
async fn other_ports_stay_closed() {
    let (declined, _, _) = forwards(PortAccess::Ask, Err(ConsentRefusal { reason: "the user declined".into() })).await;
    let error = declined.forward(5173).await.unwrap_err().to_string();
    assert_eq!(error, "port 5173 is not forwarded: the user declined");
    let (off, _, _) = forwards(PortAccess::Off, Ok(())).await;
    assert!(matches!(off.forward(5173).await, Err(PortError::Unlisted(5173))));
    let (listed, gate, server) = forwards(PortAccess::List(vec![0]), Ok(())).await;
    assert!(matches!(listed.forward(server.port()).await, Err(PortError::Unlisted(_))));
    listed.forward(0).await.unwrap();
    assert_eq!(gate.1.load(std::sync::atomic::Ordering::Relaxed), 0);
}

#[test]
fn listening_ports_are_read_from_the_kernel_table() {
    let table = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n\
                 0: 0100007F:1435 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 1\n\
                 1: 0100007F:1436 0100007F:1435 01 00000000:00000000 00:00000000 00000000     0        0 2\n\
                 2: 00000000000000000000000000000000:0BB8 00000000000000000000000000000000:0000 0A 0 0 0 0 0 3\n\
                 3: 0100007F:1435 00000000:0000 0A\n garbage\n";
    assert_eq!(listening_ports(table), [3000, 5173]);
}
