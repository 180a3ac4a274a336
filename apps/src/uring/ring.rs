//! `Ring`: an io_uring of one thread, and the frames that the kernel sends from.
//!
//! Owns: the ring, its table of files, its receive buffers, and each frame from `send` until the completion of that
//! operation. Never does: more than one system call in a turn, unless the submission ring is full or `rest` has the loop
//! wait; allocate in one. Invariant: an operation that reads or writes a frame holds it here, so no one else can touch or free it meanwhile.

use std::{
    io,
    os::fd::{AsRawFd, BorrowedFd, RawFd},
    time::{Duration, Instant},
};

use io_uring::{IoUring, cqueue, opcode, squeue, types};
use rustix::net::SocketAddrAny;
use sheafio_core::Closed;
use sheafio_mempool::{Frame, PoolCache};

use super::{
    Refused,
    buffers::{Buffers, GROUP},
    datagram::{CONTROL_BYTES, NAME_BYTES, write_message},
    operation::{Completion, Kind, Operation, Socket},
    sending::Sending,
};

/// Slots of the submission ring: what one system call can hand over.
const SUBMISSIONS: u32 = 1024;
/// Slots of the completion ring. The kernel keeps what does not fit.
const COMPLETIONS: u32 = 8192;
/// Completions that are taken at a time. What they cause is handed over together, and has to fit into the submission
/// ring as a rule.
const BATCH: usize = 512;
/// How long closing waits for cancelled operations to end.
const CLOSE_TIME: Duration = Duration::from_secs(1);
/// How long it sleeps in between.
const CLOSE_SLEEP: Duration = Duration::from_millis(10);

pub(crate) struct Ring {
    kernel: IoUring,
    buffers: Buffers,
    sending: Sending,
    batch: Vec<cqueue::Entry>,
    /// How many of the batch were looked at.
    seen: usize,
    /// Operations whose last completion was not looked at yet.
    open: usize,
    /// Says that datagrams come with their sender's address, and with control data. Never freed: the kernel reads it when
    /// it takes the operation up.
    message: &'static libc::msghdr,
}

impl Ring {
    /// A ring with `buffers` receive buffers, a power of two up to 32,768, and room for `files` accepted sockets.
    /// `frames`: the most that are sent from at a time. It must be used by the thread that makes it alone.
    pub(crate) fn new(buffers: u16, files: u32, frames: u32) -> Result<Self, Refused> {
        let refused = |step| move |error| Refused { step, error };
        let ring = Self::set_up().map_err(refused("making a ring"))?;
        let buffers = Buffers::new(buffers);
        buffers.register(&ring.submitter()).map_err(refused("registering the receive buffers"))?;
        if files > 0 {
            ring.submitter()
                .register_files_sparse(files)
                .map_err(refused("making the table of accepted sockets"))?;
        }
        // SAFETY: all its fields are integers and pointers, of which zero is valid.
        let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
        message.msg_namelen = NAME_BYTES as u32;
        message.msg_controllen = CONTROL_BYTES as _;
        Ok(Self {
            kernel: ring,
            buffers,
            sending: Sending::new(frames),
            batch: Vec::with_capacity(BATCH),
            seen: 0,
            open: 0,
            message: Box::leak(Box::new(message)),
        })
    }

    /// With the best way of running its work that this kernel has: in our system calls alone, or at least not by
    /// interrupting us.
    fn set_up() -> io::Result<IoUring> {
        let build = |set: fn(&mut io_uring::Builder)| {
            let mut builder = IoUring::builder();
            builder.setup_cqsize(COMPLETIONS).setup_clamp();
            set(&mut builder);
            builder.build(SUBMISSIONS)
        };
        let is_unknown = |error: &io::Error| error.raw_os_error() == Some(libc::EINVAL);
        let best = |builder: &mut io_uring::Builder| {
            builder.setup_single_issuer().setup_defer_taskrun().setup_taskrun_flag().setup_submit_all();
        };
        let next = |builder: &mut io_uring::Builder| {
            builder.setup_coop_taskrun().setup_taskrun_flag().setup_submit_all();
        };
        match build(best) {
            Err(error) if is_unknown(&error) => match build(next) {
                Err(error) if is_unknown(&error) => build(|_| ()),
                built => built,
            },
            built => built,
        }
    }

    /// Accepts every connection that comes to a listener: completions bring places in the table of files.
    pub(crate) fn accept(&mut self, listener: BorrowedFd<'_>, number: u32) -> Operation {
        let fd = types::Fd(listener.as_raw_fd());
        let entry = opcode::AcceptMulti::new(fd).allocate_file_index(true).build();
        // SAFETY: the operation names no memory.
        unsafe { self.push(entry, Operation::new(Kind::Accept, 0, number)) }
    }

    /// Connects a socket.
    pub(crate) fn connect(
        &mut self,
        socket: BorrowedFd<'_>,
        to: &'static SocketAddrAny,
        number: u32,
    ) -> Operation {
        let fd = types::Fd(socket.as_raw_fd());
        let entry = opcode::Connect::new(fd, to.as_ptr().cast(), to.addr_len()).build();
        // SAFETY: the address is never freed.
        unsafe { self.push(entry, Operation::new(Kind::Connect, 0, number)) }
    }

    /// Receives whatever comes, into the buffers, until a completion says that none follows.
    #[inline]
    pub(crate) fn receive(&mut self, socket: Socket<'_>, number: u32) -> Operation {
        let entry = match socket {
            Socket::Fd(fd) => opcode::RecvMulti::new(types::Fd(fd.as_raw_fd()), GROUP).build(),
            Socket::Slot(slot) => opcode::RecvMulti::new(types::Fixed(slot), GROUP).build(),
        };
        // SAFETY: the operation names no memory but the buffers, which are never given back while it is open.
        unsafe { self.push(entry, Operation::new(Kind::Receive, 0, number)) }
    }

    /// Receives datagrams, each with what [`DatagramHeader`](super::DatagramHeader) reads in front, until a completion says that none follows.
    pub(crate) fn receive_datagrams(&mut self, socket: BorrowedFd<'_>, number: u32) -> Operation {
        let fd = types::Fd(socket.as_raw_fd());
        let entry = opcode::RecvMsgMulti::new(fd, self.message, GROUP).build();
        // SAFETY: the message is never freed; the buffers as for receive.
        unsafe { self.push(entry, Operation::new(Kind::ReceiveDatagrams, 0, number)) }
    }

    /// Sends the bytes of a frame; all of them, unless the connection ends. The frame comes back with the completion.
    /// `has_more`: more is sent as soon as this is done, so a segment that is not full may wait for it.
    #[inline]
    pub(crate) fn send(
        &mut self,
        socket: Socket<'_>,
        frame: Frame,
        number: u32,
        has_more: bool,
    ) -> Operation {
        let (memory, len) = (frame.as_ptr(), frame.len() as u32);
        let more = if has_more { libc::MSG_MORE } else { 0 };
        let flags = libc::MSG_NOSIGNAL | libc::MSG_WAITALL | more;
        let entry = match socket {
            Socket::Fd(fd) => opcode::Send::new(types::Fd(fd.as_raw_fd()), memory, len).flags(flags).build(),
            Socket::Slot(slot) => opcode::Send::new(types::Fixed(slot), memory, len).flags(flags).build(),
        };
        let place = self.sending.put(frame);
        // SAFETY: the memory is the frame's, which is held in `sending` until the operation has completed.
        unsafe { self.push(entry, Operation::new(Kind::Send, place, number)) }
    }

    /// Sends a datagram back to where it came from, from the address that it was sent to. The frame is as a datagram was
    /// received into it, with other bytes behind its header if so wished; it comes back with the completion.
    ///
    /// # Panics
    /// If the frame is not one that a datagram was received into.
    #[inline]
    pub(crate) fn send_back(&mut self, socket: BorrowedFd<'_>, mut frame: Frame, number: u32) -> Operation {
        write_message(&mut frame);
        let entry = opcode::SendMsg::new(types::Fd(socket.as_raw_fd()), frame.as_ptr().cast()).build();
        let place = self.sending.put(frame);
        // SAFETY: the message and all that it leads to lie in the frame, as `write_message` has left it, which is held in
        // `sending` until the operation has completed.
        unsafe { self.push(entry, Operation::new(Kind::SendDatagram, place, number)) }
    }

    /// Ends the sending direction: the peer reads an end once it has all that was sent.
    pub(crate) fn shut_down(&mut self, slot: u32, number: u32) -> Operation {
        let entry = opcode::Shutdown::new(types::Fixed(slot), libc::SHUT_WR).build();
        // SAFETY: the operation names no memory.
        unsafe { self.push(entry, Operation::new(Kind::Shutdown, 0, number)) }
    }

    /// Ends an accepted connection by a reset, whatever was sent by then: connect(2) to no address dissolves it. Unlike
    /// SO_LINGER, it can be asked of a socket in the table of files before Linux 6.7.
    pub(crate) fn reset(&mut self, slot: u32, number: u32) -> Operation {
        static NONE: libc::sockaddr = libc::sockaddr { sa_family: libc::AF_UNSPEC as u16, sa_data: [0; 14] };
        let len = size_of::<libc::sockaddr>() as u32;
        let entry = opcode::Connect::new(types::Fixed(slot), &raw const NONE, len).build();
        // SAFETY: the address is static.
        unsafe { self.push(entry, Operation::new(Kind::Reset, 0, number)) }
    }

    /// Closes an accepted socket and frees its place in the table.
    pub(crate) fn close_slot(&mut self, slot: u32, number: u32) -> Operation {
        let entry = opcode::Close::new(types::Fixed(slot)).build();
        // SAFETY: the operation names no memory.
        unsafe { self.push(entry, Operation::new(Kind::Close, 0, number)) }
    }

    /// Asks the kernel to end an operation; its last completion comes all the same, with -ECANCELED if this was why.
    pub(crate) fn cancel(&mut self, operation: Operation) {
        let entry = opcode::AsyncCancel::new(operation.0).build();
        // SAFETY: the operation names no memory.
        unsafe { self.push(entry, Operation::new(Kind::Cancel, 0, 0)) };
    }

    /// Puts sockets into the table of files, by their order; -1 leaves a place empty. For a ring that was made without.
    pub(crate) fn set_files(&mut self, files: &[RawFd]) -> io::Result<()> {
        self.kernel.submitter().register_files(files)
    }

    /// Hands over what was asked for, and lets the kernel do its work for this ring; takes completions for `next`. No
    /// system call if there is nothing to do. `cache` fills the receive buffers.
    #[inline]
    pub(crate) fn turn(&mut self, cache: &mut PoolCache) {
        debug_assert!(self.seen == self.batch.len(), "completions that nobody has looked at");
        self.buffers.refill(cache);
        let submission = self.kernel.submission();
        let count = submission.len();
        let is_asked = submission.taskrun() || submission.cq_overflow();
        drop(submission);
        if count > 0 || is_asked {
            // SAFETY: without an argument there is no memory to be valid.
            let entered = unsafe {
                self.kernel.submitter().enter::<libc::sigset_t>(count as u32, 0, ENTER_GETEVENTS, None)
            };
            // EINTR, EBUSY and EAGAIN pass: what was not handed over still lies in the ring. Nothing else is possible
            // for a ring that is set up.
            let _ = entered;
        }
        self.batch.clear();
        self.batch.extend(self.kernel.completion().take(BATCH));
        self.seen = 0;
    }

    /// Waits until something completes, at most so long. Nothing is taken.
    pub(crate) fn wait(&self, longest: Duration) {
        let time = types::Timespec::from(longest);
        let args = types::SubmitArgs::new().timespec(&time);
        // The time is over, a signal came, something completed: all lead to the next turn.
        let _ = self.kernel.submitter().submit_with_args(1, &args);
    }

    /// The next completion of the last turn.
    #[inline]
    pub(crate) fn next(&mut self) -> Option<Completion> {
        let entry = self.batch.get(self.seen)?;
        self.seen += 1;
        let (data, result, flags) = (entry.user_data(), entry.result(), entry.flags());
        let has_more = cqueue::more(flags);
        self.open -= usize::from(!has_more);
        let place = (data >> 32) as u32 & 0x00ff_ffff;
        let frame = match cqueue::buffer_select(flags) {
            Some(id) => Some(self.buffers.take(id, result.max(0) as usize)),
            None if place > 0 => Some(self.sending.take(place)),
            None => None,
        };
        let kind = Kind::ALL[(data >> 56) as usize];
        Some(Completion { kind, number: data as u32, result, has_more, frame })
    }

    /// Receive buffers that have a frame.
    pub(crate) fn filled_buffers(&self) -> usize {
        self.buffers.filled()
    }

    /// Frames that the ring holds, in its buffers and to be sent.
    pub(crate) fn held(&self) -> usize {
        self.buffers.filled() + self.sending.len()
    }

    /// Ends every operation, and gives all frames back. Those of operations that do not end in a second are retired.
    pub(crate) fn close(mut self, cache: &mut PoolCache) -> Closed {
        let mut closed = Closed::default();
        let deadline = Instant::now() + CLOSE_TIME;
        let mut is_cancelled = false;
        loop {
            while let Some(completion) = self.next() {
                if let Some(frame) = completion.frame {
                    cache.free(frame);
                    closed.returned += 1;
                }
            }
            if self.open == 0 || Instant::now() >= deadline {
                break;
            }
            if !is_cancelled {
                is_cancelled = true;
                let all = types::CancelBuilder::any().all();
                let entry = opcode::AsyncCancel2::new(all).build();
                // SAFETY: the operation names no memory.
                unsafe { self.push(entry, Operation::new(Kind::Cancel, 0, 0)) };
            }
            self.turn_without_refill();
            if self.batch.is_empty() {
                self.wait(CLOSE_SLEEP);
            }
        }
        let is_quiet = self.open == 0 && self.kernel.submitter().unregister_buf_ring(GROUP).is_ok();
        if is_quiet {
            closed.returned += self.buffers.empty_into(cache) as u64;
        }
        let left = self.buffers.forget() + self.sending.forget();
        cache.retire(left);
        closed.retired += left as u64;
        closed
    }

    fn turn_without_refill(&mut self) {
        let count = self.kernel.submission().len() as u32;
        // SAFETY: as in turn.
        let _ = unsafe { self.kernel.submitter().enter::<libc::sigset_t>(count, 0, ENTER_GETEVENTS, None) };
        self.batch.clear();
        self.batch.extend(self.kernel.completion().take(BATCH));
        self.seen = 0;
    }

    /// Puts an operation into the submission ring.
    ///
    /// # Safety
    /// Memory that the entry names must be valid until the operation has completed: it is held by this ring or lives for
    /// ever.
    #[inline]
    unsafe fn push(&mut self, entry: squeue::Entry, operation: Operation) -> Operation {
        let entry = entry.user_data(operation.0);
        // SAFETY: the caller sees to it.
        while unsafe { self.kernel.submission().push(&entry) }.is_err() {
            // Full: hand over what is there. The kernel takes all of it, or more in the next attempt.
            let _ = self.kernel.submit();
        }
        self.open += 1;
        operation
    }
}

/// `IORING_ENTER_GETEVENTS` (linux/io_uring.h): run the work that completes operations.
const ENTER_GETEVENTS: u32 = 1;
