//! An endpoint that says what a test wants it to say, because no emulator would.

use std::sync::Arc;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

/// An HTTP status, and JSON.
pub(crate) type Answer = (u16, String);

/// Starts an endpoint, and says where it is. It answers by what a request asks for and by its body.
pub(crate) async fn stand_in<F, Fut>(answer: F) -> String
where
    F: Fn(String, String) -> Fut + Send + Sync + 'static,
    Fut: Future<Output = Answer> + Send + 'static,
{
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("sqs+http://{}/", listener.local_addr().unwrap());
    let answer = Arc::new(answer);
    tokio::spawn(async move {
        loop {
            let (stream, _) = listener.accept().await.unwrap();
            tokio::spawn(serve(stream, answer.clone()));
        }
    });
    url
}

async fn serve<F, Fut>(mut stream: TcpStream, answer: Arc<F>)
where
    F: Fn(String, String) -> Fut,
    Fut: Future<Output = Answer>,
{
    while let Some((action, body)) = request(&mut stream).await {
        let (status, json) = answer(action, body).await;
        let head = format!(
            "HTTP/1.1 {status} X\r\ncontent-type: application/x-amz-json-1.0\r\ncontent-length: {}\r\n\r\n",
            json.len()
        );
        if stream.write_all((head + &json).as_bytes()).await.is_err() {
            return;
        }
    }
}

/// The next request: what it asks for, and its body.
async fn request(stream: &mut TcpStream) -> Option<(String, String)> {
    let mut bytes = Vec::new();
    loop {
        let text = String::from_utf8_lossy(&bytes).to_string();
        if let Some((head, body)) = text.split_once("\r\n\r\n") {
            let field = |name: &str| {
                let mut lines = head.lines();
                lines.find_map(|line| {
                    line.to_lowercase().starts_with(name).then(|| line.split_once(": ").unwrap().1.to_owned())
                })
            };
            if body.len() >= field("content-length").unwrap().parse::<usize>().unwrap() {
                let target = field("x-amz-target").unwrap();
                return Some((target.rsplit('.').next().unwrap().to_owned(), body.to_owned()));
            }
        }
        let mut more = [0; 4096];
        match stream.read(&mut more).await {
            Ok(count) if count > 0 => bytes.extend_from_slice(&more[..count]),
            _ => return None,
        }
    }
}

/// SQS refuses, for this reason.
pub(crate) fn refused(code: &str) -> Answer {
    (400, format!(r#"{{"__type":"com.amazonaws.sqs#{code}","message":"it was said so"}}"#))
}

/// Where the queue is that a request asks for.
pub(crate) fn url_of(body: &str) -> Answer {
    let name = body.split('"').skip_while(|word| *word != "QueueName").nth(2).unwrap();
    (200, format!(r#"{{"QueueUrl":"http://127.0.0.1/0/{name}"}}"#))
}

/// How many rows a batch has.
pub(crate) fn rows_of(body: &str) -> usize {
    body.matches("\"Id\":").count()
}

/// The answer to a batch: all rows are taken, or all but the first.
pub(crate) fn taken(body: &str, throttles_first: bool) -> Answer {
    let ids: Vec<_> = (0..10).filter(|id| body.contains(&format!("\"Id\":\"{id}\""))).collect();
    let (failed, done) = ids.split_at(usize::from(throttles_first));
    let done: Vec<_> =
        done.iter().map(|id| format!(r#"{{"Id":"{id}","MessageId":"m","MD5OfMessageBody":"x"}}"#)).collect();
    let failed: Vec<_> =
        failed.iter().map(|id| format!(r#"{{"Id":"{id}","SenderFault":true,"Code":"RequestThrottled"}}"#)).collect();
    (200, format!(r#"{{"Successful":[{}],"Failed":[{}]}}"#, done.join(","), failed.join(",")))
}
