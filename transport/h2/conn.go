package h2

import (
	"bytes"
	"crypto/tls"
	"errors"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
)

const (
	minFrame      = 16 << 10 // RFC 9113 section 6.5.2
	defaultWindow = 1<<16 - 1
	maxWindow     = 1<<31 - 1
	maxStreamID   = 1<<31 - 1

	// A server that names no limit has none (RFC 9113 section 6.5.2); this is ours.
	unlimitedStreams = 1000

	// highWater is how much output a connection takes while its socket does not; the
	// rest is kept with the streams, so that a slow reader's streams stay fair.
	highWater = 512 << 10
	// mostKept is how much the streams of one client keep: as much as a hundred windows.
	mostKept = 32 << 20
	// overflow ends a connection: headers and control frames know no window.
	serverOverflow = 8 << 20
	clientOverflow = 64 << 20
)

// Conn is one HTTP/2 connection. Run it.
type Conn struct {
	tls    *tls.Conn
	wire   *Wire // nil: reading and writing block
	o      Options
	server bool
	log    *slog.Logger
	state  *tls.ConnectionState

	reader // the state of reading, which only Run touches

	heard atomic.Int64 // monotonic time of the last read, nanoseconds since began
	ahead atomic.Int64 // bytes that windows have grown by: see Stream.PassTo
	began time.Time

	mu      sync.Mutex
	streams map[uint32]*Stream
	lastID  uint32 // the highest that the client has opened; a client's: its own
	ready   []*Stream
	kept    int    // bytes of bodies that all streams keep
	pieces  uint64 // DATA frames that we have sent
	updates uint64 // WINDOW_UPDATEs that have come

	out      queue
	taken    int // of it, bytes that are being written
	flushing bool
	waitsOut bool // a poller goes on with it
	dirty    bool // some batch will flush
	fw       *http2.Framer
	enc      *hpack.Encoder
	hbuf     bytes.Buffer

	sendWin      int64 // the connection's
	peerWindow   int64 // SETTINGS_INITIAL_WINDOW_SIZE of the peer
	peerFrame    int
	peerStreams  uint32
	peerHeader   uint32
	recvWin      int64
	credit       int64
	reserved     uint32
	localResets  [64]uint32 // the last streams that we have reset
	nextReset    int
	goAwaySent   bool   // the final one
	goAwayLast   uint32 // no stream above it is answered
	shutting     bool
	peerGoAway   bool
	farewell     error // what the peer's GOAWAY complained of
	retired      bool
	err          error // why it ends; the first counts
	writeErr     error // it ends soon, for this or for what the peer has said before
	ended        bool  // Run is over
	pings        map[[8]byte]chan struct{}
	pingAt       time.Time // when the peer was asked whether it is there; zero: it was not
	idleSince    time.Time
	partialSince time.Time // a frame or header block has begun to come
	timer        *time.Timer
	firstPeer    chan struct{} // closed when the peer's SETTINGS are there
	writers      sync.WaitGroup
	flushed      sync.Cond      // flushing is false
	handlers     sync.WaitGroup // of Serve
	serving      int            // how many they are
	shutAt       time.Time
	pingSeq      uint16
	once         sync.Once     // of Options.Retired
	over         chan struct{} // closed when Run is
}

// reader is what belongs to the goroutine that reads: the one in Run, or a poller's while
// Run waits for it.
type reader struct {
	plain     []byte // decrypted; [0:filled] is not taken apart yet
	filled    int
	preface   int // bytes of the client's that are still to come
	settled   bool
	acked     bool
	fr        *http2.Framer
	src       bytes.Reader
	dec       *hpack.Decoder
	block     block
	data      dataFrame
	control   bucket
	late      bucket // for streams that we have ended
	resets    bucket
	batch     Batch
	readErr   error
	spent     error // by streamError
	poller    *poller
	polledOut chan struct{} // closed when the poller has let go of it
	readable  func(fd uintptr) bool
	whole     uint64 // frames and header blocks that have come to their end
	begunAt   uint64 // of them, when the one that is coming began
}

// New makes a Conn of a TLS connection that has negotiated "h2" (RFC 9113 section
// 3.2). Where the connection stands on a [Wire], nothing blocks. Run it: until then
// nothing is sent.
func New(tc *tls.Conn, o Options) *Conn {
	o.defaults()
	c := &Conn{
		tls: tc, o: o, server: o.Begin != nil, log: o.Logger,
		streams:     make(map[uint32]*Stream),
		sendWin:     defaultWindow,
		peerWindow:  defaultWindow,
		peerFrame:   minFrame,
		peerStreams: 100, // section 6.5.2 recommends not less, and it is not known yet
		peerHeader:  ^uint32(0),
		recvWin:     int64(o.ConnWindow),
		goAwayLast:  maxStreamID,
		pings:       make(map[[8]byte]chan struct{}),
		firstPeer:   make(chan struct{}),
		over:        make(chan struct{}),
		began:       time.Now(),
	}
	c.flushed.L = &c.mu
	state := tc.ConnectionState()
	c.state = &state
	if w, ok := tc.NetConn().(*Wire); ok && w.raw != nil {
		c.wire = w
		w.taken.Store(true) // before anybody writes: the poller closes what is below
	}
	c.fw = http2.NewFramer(&c.out, nil)
	c.enc = hpack.NewEncoder(&c.hbuf)
	c.fr = http2.NewFramer(nil, &c.src)
	c.fr.SetMaxReadFrameSize(o.MaxFrame)
	c.fr.SetReuseFrames()
	c.dec = hpack.NewDecoder(4096, c.block.emit)
	c.dec.SetMaxStringLength(2 * int(o.MaxHeader)) // one that is too long is a 431, and no end of the connection
	c.block.limit = o.MaxHeader
	c.control = bucket{size: 1000, every: time.Second / 200}
	c.late = bucket{size: 20000, every: time.Millisecond / 10}
	c.resets = bucket{size: 800, every: time.Second / 50} // nearly all streams of a client at once are no flood
	c.readable = c.read
	c.idleSince, c.partialSince = c.began, c.began
	if c.server {
		c.preface = len(http2.ClientPreface)
	} else {
		c.lastID = ^uint32(0) // the first stream is 1
	}
	c.hello()
	return c
}

// ConnectionState is that of TLS.
func (c *Conn) ConnectionState() *tls.ConnectionState { return c.state }

// Run reads until the connection ends, and says why: nil where the peer closed it
// with no stream open, or it had nothing more to do. Every stream's receiver has been told by then,
// and the connection is closed.
func (c *Conn) Run() error {
	c.mu.Lock()
	c.schedule(c.o.HeaderTime)
	c.release(&c.batch)
	c.batch.Flush()
	var err error
	if c.wire != nil {
		err = c.poll()
	} else {
		err = c.blocking()
	}
	return c.finish(err)
}

// hello is what comes first on a connection.
func (c *Conn) hello() {
	settings := []http2.Setting{
		{ID: http2.SettingInitialWindowSize, Val: uint32(c.o.StreamWindow)},
		{ID: http2.SettingMaxHeaderListSize, Val: c.o.MaxHeader},
	}
	if c.o.MaxFrame > minFrame {
		settings = append(settings, http2.Setting{ID: http2.SettingMaxFrameSize, Val: c.o.MaxFrame})
	}
	if c.server {
		settings = append(settings, http2.Setting{ID: http2.SettingMaxConcurrentStreams, Val: c.o.MaxStreams})
	} else {
		settings = append(settings, http2.Setting{ID: http2.SettingEnablePush, Val: 0})
		_, _ = c.out.Write([]byte(http2.ClientPreface))
	}
	_ = c.fw.WriteSettings(settings...)
	if more := c.o.ConnWindow - defaultWindow; more > 0 {
		_ = c.fw.WriteWindowUpdate(0, uint32(more))
	}
}

// poll is the reading of a connection that does not block: by a poller, or else in one call
// of RawConn.Read, which waits in between for the socket to become readable.
func (c *Conn) poll() error {
	// TLS may have read on after the handshake.
	if err := c.consume(&c.batch); err != nil {
		return err
	}
	c.batch.Flush()
	if c.adopt() {
		<-c.polledOut
		return c.readErr
	}
	err := c.wire.raw.Read(c.readable)
	if c.readErr != nil {
		return c.readErr
	}
	return err
}

// read is called by RawConn.Read while the socket may be readable. It must not
// close the connection: closing waits for it.
func (c *Conn) read(fd uintptr) bool {
	buf := wireBuffers.Get().(*[wireSize]byte)
	defer wireBuffers.Put(buf)
	for {
		err := c.wire.fill(fd, buf[:])
		if errors.Is(err, errAgain) {
			return false
		}
		if err == nil {
			err = c.consume(&c.batch)
			c.batch.Flush()
		}
		if err == nil {
			err = c.failed()
		}
		if err != nil {
			c.readErr = err
			return true
		}
	}
}

// blocking is the reading of a connection that does.
func (c *Conn) blocking() error {
	for {
		if err := c.consume(&c.batch); err != nil {
			return err
		}
	}
}

const plainSize = 32 << 10

var plains = sync.Pool{New: func() any { return new([plainSize]byte) }}

// consume decrypts what there is and takes it apart.
func (c *Conn) consume(b *Batch) error {
	c.heard.Store(int64(time.Since(c.began)))
	for {
		if c.plain == nil {
			c.plain = plains.Get().(*[plainSize]byte)[:]
		}
		n, err := c.tls.Read(c.plain[c.filled:])
		c.filled += n
		if n > 0 {
			if ferr := c.frames(b); ferr != nil {
				return ferr
			}
		}
		switch {
		case err == nil:
			if c.wire == nil {
				c.rest()
				b.Flush()
				return nil
			}
		case errors.Is(err, errAgain):
			c.rest()
			return nil
		default:
			return err
		}
	}
}

// rest lets go of what is not needed while nothing comes.
func (c *Conn) rest() {
	partial := c.filled > 0 || c.block.open || c.preface > 0 || !c.settled
	if c.filled == 0 {
		if len(c.plain) == plainSize {
			plains.Put((*[plainSize]byte)(c.plain))
		}
		c.plain = nil
		c.block.rest()
	}
	c.mu.Lock()
	switch {
	case !partial:
		c.partialSince = time.Time{}
	case c.partialSince.IsZero() || c.begunAt != c.whole:
		c.begunAt, c.partialSince = c.whole, time.Now()
		c.schedule(c.o.HeaderTime)
	}
	c.mu.Unlock()
}

// A Batch collects the connections that have something to write.
type Batch struct{ dirty []*Conn }

var batches = sync.Pool{New: func() any { return new(Batch) }}

// Flush writes. Receivers may be called.
func (b *Batch) Flush() {
	for len(b.dirty) > 0 {
		last := len(b.dirty) - 1
		c := b.dirty[last]
		b.dirty[last] = nil
		b.dirty = b.dirty[:last]
		c.flush(b)
	}
}

// releaseIf unlocks c; wrote says whether output has been appended to it.
func (c *Conn) releaseIf(wrote bool, b *Batch) {
	if !wrote {
		c.mu.Unlock()
		return
	}
	c.release(b)
}

// release unlocks c, after output may have been appended to it.
func (c *Conn) release(b *Batch) {
	if c.dirty && b != nil { // somebody's batch will flush it
		c.mu.Unlock()
		return
	}
	if b != nil {
		c.dirty = true
		b.dirty = append(b.dirty, c)
		c.mu.Unlock()
		return
	}
	c.mu.Unlock()
	b = batches.Get().(*Batch)
	c.flush(b)
	b.Flush()
	batches.Put(b)
}
