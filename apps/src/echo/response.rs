//! Requests and responses of given sizes, for `--response-size`.
//!
//! Owns: the rule by which bytes answer a request. Never does: keep more of a request than its first bytes. Invariant: one
//! request is answered before the next one is read.

use sheafio_mempool::{Frame, XDP_HEADROOM_BYTES};

use super::REPEATED_BYTES;

/// What is answered.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Responder {
    pub(crate) response_bytes: u32,
    /// `None`: a request is what comes in one reception.
    pub(crate) request_bytes: Option<u32>,
}

/// The request that a flow is at, and the response to it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Request {
    head: [u8; REPEATED_BYTES],
    head_len: u8,
    /// Bytes of the request that came.
    came: u32,
    /// Bytes of the response that are not sent yet; 0 while the request comes.
    left: u32,
    /// Bytes of it that were put into a frame.
    filled: u32,
    response_bytes: u32,
}

impl Default for Request {
    fn default() -> Self {
        Self { head: [0; REPEATED_BYTES], head_len: 0, came: 0, left: 0, filled: 0, response_bytes: 0 }
    }
}

impl Request {
    /// Whether the request is there and its response is not all sent.
    pub(crate) fn is_answering(&self) -> bool {
        self.left > 0
    }

    /// Takes bytes of the request; returns how many. If that was its end, the response is due.
    pub(crate) fn take(&mut self, bytes: &[u8], responder: &Responder) -> usize {
        debug_assert!(self.left == 0);
        let missing = responder.request_bytes.map_or(bytes.len(), |size| (size - self.came) as usize);
        let taken = missing.min(bytes.len());
        let head = usize::from(self.head_len);
        let more = taken.min(REPEATED_BYTES - head);
        self.head[head..head + more].copy_from_slice(&bytes[..more]);
        self.head_len += more as u8;
        self.came += taken as u32;
        if taken == missing {
            (self.left, self.response_bytes) = (responder.response_bytes, responder.response_bytes);
            self.came = 0;
        }
        taken
    }

    /// Makes the next part of the response the content of a frame, as much of it as the frame has room for. Returns
    /// whether more is left.
    pub(crate) fn fill(&mut self, frame: &mut Frame) -> bool {
        // Back to where packets start, whatever was taken off its front.
        let front = frame.headroom().saturating_sub(usize::from(XDP_HEADROOM_BYTES));
        let _ = frame.prepend(front);
        self.filled = set_len(frame, self.left as usize) as u32;
        let at = (self.response_bytes - self.left) as usize;
        repeat(&self.head[..usize::from(self.head_len)], at, frame);
        self.filled < self.left
    }

    /// Copies what comes next of the response, as much as there is room for. Returns how many bytes.
    pub(crate) fn peek(&self, to: &mut [u8]) -> usize {
        let len = to.len().min(self.left as usize);
        if len > 0 {
            let at = (self.response_bytes - self.left) as usize;
            repeat(&self.head[..usize::from(self.head_len)], at, &mut to[..len]);
        }
        len
    }

    /// So many bytes of the response are written. Returns whether that was its end.
    pub(crate) fn advance(&mut self, bytes: u32) -> bool {
        self.filled = bytes;
        self.sent()
    }

    /// What was filled last is sent. Returns whether that was the end of the response.
    pub(crate) fn sent(&mut self) -> bool {
        self.left -= self.filled;
        if self.left == 0 {
            self.head_len = 0;
        }
        self.left == 0
    }
}

/// Makes a frame `len` bytes long, or as long as it can be. Returns how long.
fn set_len(frame: &mut Frame, len: usize) -> usize {
    if let Some(more) = frame.len().checked_sub(len) {
        frame.trim_back(more);
    } else {
        let missing = (len - frame.len()).min(frame.tailroom());
        let _ = frame.append(missing);
    }
    frame.len()
}

/// Writes what begins `at` bytes into `head` over and over.
fn repeat(head: &[u8], at: usize, to: &mut [u8]) {
    let mut from = at % head.len();
    let mut to = to;
    while !to.is_empty() {
        let count = to.len().min(head.len() - from);
        to[..count].copy_from_slice(&head[from..from + count]);
        (to, from) = (&mut to[count..], 0);
    }
}

/// Makes the datagram behind the first `start` bytes of a frame its response. One without bytes is answered by one.
pub(crate) fn answer_datagram(frame: &mut Frame, start: usize, response_bytes: u32) {
    let mut head = [0; REPEATED_BYTES];
    let len = (frame.len() - start).min(REPEATED_BYTES);
    if len == 0 {
        return;
    }
    head[..len].copy_from_slice(&frame[start..start + len]);
    set_len(frame, start + response_bytes as usize);
    repeat(&head[..len], 0, &mut frame[start..]);
}

#[cfg(test)]
mod tests {
    use sheafio_mempool::{Hugepages, Mempool};

    use super::*;

    /// The rule, as it is documented.
    fn expected(request: &[u8], len: usize) -> Vec<u8> {
        request[..request.len().min(REPEATED_BYTES)].iter().copied().cycle().take(len).collect()
    }

    #[test]
    fn requests_of_any_size_in_any_pieces_get_responses_of_any_size() {
        let pool = Mempool::builder().frames(64).hugepages(Hugepages::Off).build().unwrap();
        let mut cache = pool.cache().unwrap();
        for request_len in [1, 3, 63, 64, 65, 1000] {
            let request: Vec<u8> = (0..request_len).map(|at| (at * 7 + 1) as u8).collect();
            for response_len in [1, 64, 100, 1792, 1793, 10_000] {
                for piece in [1, 2, 50, 1000] {
                    let responder = Responder {
                        response_bytes: response_len as u32,
                        request_bytes: Some(request_len as u32),
                    };
                    let mut state = Request::default();
                    // Twice, so that what is left of the first request would be seen.
                    for _ in 0..2 {
                        let mut taken = 0;
                        while !state.is_answering() {
                            let end = (taken + piece).min(request_len + 5);
                            let mut bytes = request.clone();
                            bytes.extend([0xee; 5]); // Of the next one: not to be taken.
                            taken += state.take(&bytes[taken..end], &responder);
                        }
                        assert_eq!(taken, request_len);
                        let mut response = Vec::new();
                        while state.is_answering() {
                            let mut frame = cache.alloc().unwrap();
                            frame.append(33).unwrap();
                            frame.trim_front(20);
                            let has_more = state.fill(&mut frame);
                            response.extend_from_slice(&frame);
                            assert_eq!(has_more, response.len() < response_len);
                            cache.free(frame);
                            assert_eq!(state.sent(), response.len() == response_len);
                        }
                        assert_eq!(response, expected(&request, response_len));
                    }
                }
            }
        }
    }

    #[test]
    fn a_reception_is_a_request_where_no_size_is_given() {
        let responder = Responder { response_bytes: 4, request_bytes: None };
        let mut state = Request::default();
        assert_eq!(state.take(b"abc", &responder), 3);
        assert!(state.is_answering());
    }

    #[test]
    fn datagrams_are_answered_by_the_same_rule() {
        let pool = Mempool::builder().frames(64).hugepages(Hugepages::Off).build().unwrap();
        let mut cache = pool.cache().unwrap();
        for (request, len) in [(&b"abc"[..], 7), (&b"abcdefgh"[..], 3), (&[5; 100][..], 1000), (&b""[..], 9)]
        {
            let mut frame = cache.alloc().unwrap();
            frame.append(44 + request.len()).unwrap()[44..].copy_from_slice(request);
            answer_datagram(&mut frame, 44, len);
            let len = if request.is_empty() { 0 } else { len as usize };
            assert_eq!(frame[44..], expected(request, len));
            cache.free(frame);
        }
    }
}
