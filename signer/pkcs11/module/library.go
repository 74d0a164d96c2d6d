//go:build cgo && !nopkcs11

package module

import (
	"errors"
	"fmt"
	"math"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/ThalesIgnite/crypto11"
	"github.com/miekg/pkcs11"

	"github.com/execproxy/execproxy/signer/pkcs11/internal/wire"
)

// Available returns nil: this build has PKCS#11.
func Available() error { return nil }

// library is a loaded library, logged in to one token.
//
// Two packages drive it. crypto11 holds the sessions that sign, and makes objects. What it
// lacks goes through miekg/pkcs11, beneath it, on a session of our own: which tokens there
// are, the login, keys that want the PIN for each signature, keys without an id, deletion.
// crypto11 is not used at all for a token that has no two sessions that may write.
type library struct {
	mu   sync.RWMutex // signatures share it, all else has it alone
	path string
	p    *pkcs11.Ctx
	c    *crypto11.Context // nil: see above
	slot uint
	// ambiguous: two tokens have one serial number, and only slots tell them apart.
	ambiguous bool

	session pkcs11.SessionHandle
	own     sync.Mutex // one operation at a time in session
	pin     []byte     // kept for a key that wants it for each signature
	keys    []privateKey
	key     *privateKey // that Use chose
}

func newHandler() handler { return (&library{}).handle }

func (l *library) handle(kind wire.Kind, body []byte) (wire.Message, error) {
	if kind == wire.KindSign {
		var m wire.Sign
		if err := wire.Decode(body, &m); err != nil {
			return nil, err
		}
		l.mu.RLock()
		defer l.mu.RUnlock()
		return l.sign(&m)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	switch kind {
	case wire.KindTokens:
		return handle(body, l.tokens)
	case wire.KindStart:
		return handle(body, l.start)
	case wire.KindKeys:
		return l.list()
	case wire.KindUse:
		return handle(body, l.use)
	case wire.KindGenerate:
		return handle(body, l.generate)
	case wire.KindStore:
		return handle(body, l.store)
	case wire.KindDestroy:
		return handle(body, l.destroy)
	}
	return nil, fmt.Errorf("unknown request %d", kind)
}

func handle[M any, P interface {
	*M
	wire.Message
}](body []byte, f func(P) (wire.Message, error)) (wire.Message, error) {
	m := P(new(M))
	if err := wire.Decode(body, m); err != nil {
		return nil, err
	}
	return f(m)
}

var errOrder = errors.New("requests out of order")

// tokens loads the library and tells which tokens it shows.
func (l *library) tokens(m *wire.TokensRequest) (wire.Message, error) {
	if l.p != nil {
		return nil, errOrder
	}
	p := pkcs11.New(m.Module)
	if p == nil {
		return nil, &wire.Failed{Problem: wire.ProblemLoad, Detail: whyNotLoaded(m.Module)}
	}
	l.p, l.path = p, m.Module
	if err := p.Initialize(); err != nil {
		return nil, failed("C_Initialize", err)
	}
	var out wire.Tokens
	if info, err := p.GetInfo(); err == nil {
		out.LibraryManufacturer, out.LibraryDescription = info.ManufacturerID, info.LibraryDescription
		out.LibraryVersion = fmt.Sprintf("%d.%d", info.LibraryVersion.Major, info.LibraryVersion.Minor)
	}
	slots, err := p.GetSlotList(true)
	if err != nil {
		return nil, failed("C_GetSlotList", err)
	}
	for _, slot := range slots {
		t, err := l.token(slot)
		if err != nil {
			continue // pulled out just now, or a reader with a fault: others may do
		}
		if info, err := p.GetSlotInfo(slot); err == nil {
			t.SlotDescription, t.SlotManufacturer = info.SlotDescription, info.ManufacturerID
		}
		for _, other := range out.Tokens {
			l.ambiguous = l.ambiguous || other.Serial == t.Serial
		}
		out.Tokens = append(out.Tokens, t)
	}
	return &out, nil
}

// whyNotLoaded guesses: miekg/pkcs11 does not tell what the dynamic linker said.
func whyNotLoaded(path string) string {
	if !strings.ContainsRune(path, '/') && !strings.ContainsRune(path, os.PathSeparator) {
		return "no library of this name is installed"
	}
	switch fi, err := os.Stat(path); {
	case errors.Is(err, os.ErrNotExist):
		return "no such file"
	case errors.Is(err, os.ErrPermission):
		return "no permission to read it"
	case err != nil:
		return "it cannot be read"
	case fi.IsDir():
		return "it is a directory"
	}
	return "it is no PKCS#11 library for this machine, or lacks a library that it needs"
}

func (l *library) token(slot uint) (wire.Token, error) {
	info, err := l.p.GetTokenInfo(slot)
	if err != nil {
		return wire.Token{}, err
	}
	return wire.Token{Slot: uint64(slot), Label: info.Label, Serial: info.SerialNumber, Model: info.Model,
		Manufacturer: info.ManufacturerID, Flags: uint64(info.Flags)}, nil
}

// start opens sessions with the token and logs in.
func (l *library) start(m *wire.Start) (wire.Message, error) {
	if l.p == nil || l.session != 0 {
		return nil, errOrder
	}
	l.slot = uint(m.Token.Slot)
	info, err := l.p.GetTokenInfo(l.slot)
	if err != nil {
		return nil, failed("C_GetTokenInfo", err)
	}
	flags := uint(pkcs11.CKF_SERIAL_SESSION)
	if info.Flags&pkcs11.CKF_WRITE_PROTECTED == 0 {
		flags |= pkcs11.CKF_RW_SESSION
	}
	// crypto11 panics where it may open one session only, and opens only those that write.
	// One is for us.
	room := min(sessions(info.MaxSessionCount), sessions(info.MaxRwSessionCount)) - 1
	if flags&pkcs11.CKF_RW_SESSION != 0 && room >= 2 {
		if err := l.configure(m, room); err != nil {
			return nil, err
		}
	}
	// Slots may have been numbered anew, and the PIN is for one token only.
	if t, err := l.token(l.slot); err != nil {
		return nil, failed("C_GetTokenInfo", err)
	} else if t.Label != m.Token.Label || t.Serial != m.Token.Serial {
		return nil, &wire.Failed{Problem: wire.ProblemToken, Detail: "another token lies in its slot now"}
	}
	if l.session, err = l.p.OpenSession(l.slot, flags); err != nil {
		return nil, failed("C_OpenSession", err)
	}
	if !m.Login {
		return nil, nil
	}
	if !l.loggedIn() {
		if err := l.login(pkcs11.CKU_USER, m.PIN); err != nil {
			return nil, err
		}
	}
	l.pin = append([]byte(nil), m.PIN...)
	return nil, nil
}

// sessions reads a CK_TOKEN_INFO's limit of sessions.
func sessions(limit uint) uint {
	if limit == pkcs11.CK_EFFECTIVELY_INFINITE || limit == pkcs11.CK_UNAVAILABLE_INFORMATION {
		return math.MaxInt
	}
	return limit
}

// configure lets crypto11 have the library, and log in. It initialises the library, and takes
// one that is initialised already for an error, so it must come first.
//
// Most libraries are one for the whole process. To those of p11-kit each C_GetFunctionList is
// another application, with sessions and a login of its own: crypto11's and ours.
func (l *library) configure(m *wire.Start, room uint) error {
	if err := l.p.Finalize(); err != nil {
		return failed("C_Finalize", err)
	}
	config := &crypto11.Config{
		Path: l.path, TokenSerial: m.Token.Serial, LoginNotSupported: !m.Login, Pin: string(m.PIN),
		// One of its sessions only keeps the login alive.
		MaxSessions: int(min(uint(m.Sessions)+1, room)), PoolWaitTimeout: time.Duration(m.Wait),
	}
	if l.ambiguous || m.Token.Serial == "" {
		slot := int(l.slot)
		config.TokenSerial, config.SlotNumber = "", &slot
	}
	c, err := crypto11.Configure(config)
	config.Pin = "" // it keeps config
	if err != nil {
		call := "C_OpenSession"
		for text, is := range map[string]string{"failed to log into": "C_Login", "failed to initialize": "C_Initialize", "failed to list": "C_GetSlotList"} {
			if strings.HasPrefix(err.Error(), text) {
				call = is
			}
		}
		return failed(call, err)
	}
	l.c = c
	if err := l.p.Initialize(); err != nil && ckr(err) != pkcs11.CKR_CRYPTOKI_ALREADY_INITIALIZED {
		return failed("C_Initialize", err)
	}
	return nil
}

// loggedIn tells whether crypto11's login is ours, too.
func (l *library) loggedIn() bool {
	info, err := l.p.GetSessionInfo(l.session)
	return err == nil && (info.State == pkcs11.CKS_RO_USER_FUNCTIONS || info.State == pkcs11.CKS_RW_USER_FUNCTIONS)
}

func (l *library) login(user uint, pin []byte) error {
	err := l.p.Login(l.session, user, string(pin))
	if err != nil && ckr(err) != pkcs11.CKR_USER_ALREADY_LOGGED_IN {
		return failed("C_Login", err)
	}
	return nil
}

// failed says which call failed. crypto11 wraps what the library returned in errors that
// errors.As does not see through.
func failed(call string, err error) error {
	if code := ckr(err); code != 0 {
		return &wire.Failed{Problem: wire.ProblemCall, Call: call, CKR: uint64(code)}
	}
	if strings.Contains(err.Error(), "timed out") { // of crypto11's pool, which does not export its error
		return &wire.Failed{Problem: wire.ProblemBusy, Detail: "no session became free in time"}
	}
	if strings.Contains(err.Error(), "could not find PKCS#11 token") {
		return &wire.Failed{Problem: wire.ProblemToken, Detail: "it left its slot just now"}
	}
	return &wire.Failed{Problem: wire.ProblemUnsupported, Detail: oneLine(err.Error())}
}

// ckr returns the return value that err stands for, 0 for none.
func ckr(err error) uint {
	for err != nil {
		if code, ok := err.(pkcs11.Error); ok {
			return uint(code)
		}
		if c, ok := err.(interface{ Cause() error }); ok {
			err = c.Cause()
			continue
		}
		err = errors.Unwrap(err)
	}
	return 0
}

func oneLine(s string) string { return strings.Join(strings.Fields(s), " ") }
