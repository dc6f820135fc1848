//! A fake endpoint whose answers a test chooses.

use std::sync::Arc;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

/// An HTTP status and a JSON body.
pub(crate) type Answer = (u16, String);

/// Starts an endpoint and returns its URL. `answer` gets the action and the body of a request.
pub(crate) async fn fake_endpoint<F, Fut>(answer: F) -> String
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

/// Reads the next request: its action and its body.
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

/// An error answer with this code.
pub(crate) fn refused(code: &str) -> Answer {
    (400, format!(r#"{{"__type":"com.amazonaws.sqs#{code}","message":"the test refuses it"}}"#))
}

/// The answer to GetQueueUrl or CreateQueue.
pub(crate) fn url_of(body: &str) -> Answer {
    let name = body.split('"').skip_while(|word| *word != "QueueName").nth(2).unwrap();
    (200, format!(r#"{{"QueueUrl":"http://127.0.0.1/0/{name}"}}"#))
}

/// The number of rows of a batch.
pub(crate) fn rows_of(body: &str) -> usize {
    body.matches("\"Id\":").count()
}

/// The answer to a batch: all rows are accepted, or all but the first.
pub(crate) fn taken(body: &str, throttles_first: bool) -> Answer {
    let ids: Vec<_> = (0..10).filter(|id| body.contains(&format!("\"Id\":\"{id}\""))).collect();
    let (failed, done) = ids.split_at(usize::from(throttles_first));
    let done: Vec<_> =
        done.iter().map(|id| format!(r#"{{"Id":"{id}","MessageId":"m","MD5OfMessageBody":"x"}}"#)).collect();
    let failed: Vec<_> =
        failed.iter().map(|id| format!(r#"{{"Id":"{id}","SenderFault":true,"Code":"RequestThrottled"}}"#)).collect();
    (200, format!(r#"{{"Successful":[{}],"Failed":[{}]}}"#, done.join(","), failed.join(",")))
}
