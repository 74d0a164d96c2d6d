package wire

// A Message is the body of a frame.
type Message interface {
	encode(*encoder)
	decode(*decoder)
}

// Encode returns the body of m.
func Encode(m Message) []byte {
	var e encoder
	m.encode(&e)
	return e.b
}

// Decode reads m from a body, all of it. m shares its memory.
func Decode(body []byte, m Message) error {
	d := decoder{b: body}
	m.decode(&d)
	return d.end()
}

// TokensRequest loads a module; its answer is Tokens.
type TokensRequest struct{ Module string }

func (m *TokensRequest) encode(e *encoder) { e.text(m.Module) }
func (m *TokensRequest) decode(d *decoder) { m.Module = d.text() }

// Token is a token as C_GetTokenInfo and C_GetSlotInfo tell it.
type Token struct {
	Slot                               uint64
	Label, Serial, Model, Manufacturer string
	SlotDescription, SlotManufacturer  string
	Flags                              uint64 // CKF_…
}

// Tokens are the tokens of a module, and what C_GetInfo tells of it.
type Tokens struct {
	LibraryManufacturer, LibraryDescription, LibraryVersion string

	Tokens []Token
}

func (m *Tokens) encode(e *encoder) {
	e.text(m.LibraryManufacturer)
	e.text(m.LibraryDescription)
	e.text(m.LibraryVersion)
	e.count(len(m.Tokens))
	for _, t := range m.Tokens {
		e.number(t.Slot)
		for _, s := range []string{t.Label, t.Serial, t.Model, t.Manufacturer, t.SlotDescription, t.SlotManufacturer} {
			e.text(s)
		}
		e.number(t.Flags)
	}
}

func (m *Tokens) decode(d *decoder) {
	m.LibraryManufacturer, m.LibraryDescription, m.LibraryVersion = d.text(), d.text(), d.text()
	for n := d.count(); n > 0 && d.err == nil; n-- {
		t := Token{Slot: d.number()}
		for _, s := range []*string{&t.Label, &t.Serial, &t.Model, &t.Manufacturer, &t.SlotDescription, &t.SlotManufacturer} {
			*s = d.text()
		}
		t.Flags = d.number()
		m.Tokens = append(m.Tokens, t)
	}
}

// Start opens sessions with a token and logs in.
type Start struct {
	Token    Token  // as Tokens told it
	Sessions uint64 // that sign at the same time
	Wait     uint64 // nanoseconds a signature waits for a session
	Login    bool
	PIN      []byte
}

func (m *Start) encode(e *encoder) {
	(&Tokens{Tokens: []Token{m.Token}}).encode(e)
	e.number(m.Sessions)
	e.number(m.Wait)
	e.flag(m.Login)
	e.bytes(m.PIN)
}

func (m *Start) decode(d *decoder) {
	var t Tokens
	t.decode(d)
	if len(t.Tokens) != 1 || t.LibraryManufacturer+t.LibraryDescription+t.LibraryVersion != "" {
		d.err = errMalformed
		return
	}
	m.Token = t.Tokens[0]
	m.Sessions, m.Wait, m.Login, m.PIN = d.number(), d.number(), d.flag(), d.bytes()
}

// Key is a private key on a token.
type Key struct {
	ID, Label []byte
	Public    []byte // PKIX; empty where Problem says why
	Always    bool   // CKA_ALWAYS_AUTHENTICATE
	Problem   string
}

// Certificate is a certificate on a token, or one to write there.
type Certificate struct{ ID, Label, DER []byte }

// Keys are the private keys and the certificates of a token. Use names a key by its place.
type Keys struct {
	Keys         []Key
	Certificates []Certificate
}

func (m *Keys) encode(e *encoder) {
	e.count(len(m.Keys))
	for _, k := range m.Keys {
		e.bytes(k.ID)
		e.bytes(k.Label)
		e.bytes(k.Public)
		e.flag(k.Always)
		e.text(k.Problem)
	}
	encodeCertificates(e, m.Certificates)
}

func (m *Keys) decode(d *decoder) {
	for n := d.count(); n > 0 && d.err == nil; n-- {
		m.Keys = append(m.Keys, Key{ID: d.bytes(), Label: d.bytes(), Public: d.bytes(), Always: d.flag(), Problem: d.text()})
	}
	m.Certificates = decodeCertificates(d)
}

func encodeCertificates(e *encoder, all []Certificate) {
	e.count(len(all))
	for _, c := range all {
		e.bytes(c.ID)
		e.bytes(c.Label)
		e.bytes(c.DER)
	}
}

func decodeCertificates(d *decoder) (all []Certificate) {
	for n := d.count(); n > 0 && d.err == nil; n-- {
		all = append(all, Certificate{ID: d.bytes(), Label: d.bytes(), DER: d.bytes()})
	}
	return all
}

// Use chooses one of Keys for all that follows.
type Use struct{ Index uint64 }

func (m *Use) encode(e *encoder) { e.number(m.Index) }
func (m *Use) decode(d *decoder) { m.Index = d.number() }

// Sign asks for a signature; the answer is a Signature.
type Sign struct {
	Hash   uint64 // crypto.Hash
	PSS    bool
	Salt   uint64 // bytes, with PSS
	Digest []byte
}

func (m *Sign) encode(e *encoder) {
	e.number(m.Hash)
	e.flag(m.PSS)
	e.number(m.Salt)
	e.bytes(m.Digest)
}

func (m *Sign) decode(d *decoder) {
	m.Hash, m.PSS, m.Salt, m.Digest = d.number(), d.flag(), d.number(), d.bytes()
}

// Signature is one as crypto.Signer returns it.
type Signature struct{ Signature []byte }

func (m *Signature) encode(e *encoder) { e.bytes(m.Signature) }
func (m *Signature) decode(d *decoder) { m.Signature = d.bytes() }

// Generate makes a key pair on the token.
type Generate struct {
	Algorithm string
	ID, Label []byte
}

func (m *Generate) encode(e *encoder) { e.text(m.Algorithm); e.bytes(m.ID); e.bytes(m.Label) }
func (m *Generate) decode(d *decoder) { m.Algorithm, m.ID, m.Label = d.text(), d.bytes(), d.bytes() }

// Store writes certificates and then deletes others. Destroy, with the same body, deletes
// others and then the key pair in use.
type Store struct{ Write, Delete []Certificate }

func (m *Store) encode(e *encoder) { encodeCertificates(e, m.Write); encodeCertificates(e, m.Delete) }
func (m *Store) decode(d *decoder) { m.Write, m.Delete = decodeCertificates(d), decodeCertificates(d) }

// A Problem is what went wrong in the child.
type Problem uint64

// The problems.
const (
	ProblemCall        Problem = iota + 1 // a PKCS#11 call returned an error: Call, CKR
	ProblemLoad                           // the module does not load
	ProblemNoCGO                          // this build has no PKCS#11
	ProblemToken                          // another token lies in the slot now
	ProblemBusy                           // no session became free
	ProblemUnsupported                    // the token or the module cannot do it
	ProblemRequest                        // the request makes no sense: a bug
)

// Failed is the answer to a request that failed.
type Failed struct {
	Problem Problem
	Call    string // C_…
	CKR     uint64
	Detail  string
}

func (m *Failed) encode(e *encoder) {
	e.number(uint64(m.Problem))
	e.text(m.Call)
	e.number(m.CKR)
	e.text(m.Detail)
}

func (m *Failed) decode(d *decoder) {
	m.Problem, m.Call, m.CKR, m.Detail = Problem(d.number()), d.text(), d.number(), d.text()
}

func (m *Failed) Error() string { return m.Call + ": " + m.Detail }
