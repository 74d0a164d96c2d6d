package enroll

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"net/url"
	"strconv"
	"time"
)

const (
	// signPatience is how long a signer may take before it is doubted that there is one.
	// kube-controller-manager's take a tenth of a second.
	signPatience = 30 * time.Second
	// watchLife is how long one watch lasts; watchGrace how long the server may take to
	// end it, or else it is dead.
	watchLife  = 4 * time.Minute
	watchGrace = 20 * time.Second
	// lasting is how long things must go well for failures to be forgotten.
	lasting = 10 * time.Second
	// Without the right to watch, the request is looked at in steps that grow.
	firstPoll, longestPoll = 2 * time.Second, 15 * time.Second
)

// ProgressState is how far a request is on its way.
type ProgressState string

// The states of a request, in their order.
const (
	Pending  ProgressState = "pending approval"
	Approved ProgressState = "approved, waiting for the signer"
	Issued   ProgressState = "issued"
)

// Progress is what is known of a request while it is waited for.
type Progress struct {
	Name, SignerName string
	State            ProgressState
	// Overdue: it was approved a while ago and nobody signs.
	Overdue bool
	// Trouble is why nothing newer is known, while that is so; it is tried again.
	Trouble error
}

// String is one line for the user.
func (p Progress) String() string {
	s := "certificate signing request " + p.Name + ": " + string(p.State)
	if p.State == Pending {
		s += ": an administrator runs: " + ApproveCommand(p.Name)
	}
	if p.Overdue {
		s += fmt.Sprintf(": nobody has signed it for %v: no controller of this cluster seems to sign for %s", signPatience, p.SignerName)
	}
	if p.Trouble != nil {
		s += " (trying again: " + p.Trouble.Error() + ")"
	}
	return s
}

// Wait waits until the request has a certificate and returns its chain, PEM, leaf first. The
// certificate is for the order's key and for client authentication, and valid now; another
// is a *[CertificateError]. A request that was denied, failed or deleted is a *[DeniedError],
// *[FailedError] or *[DeletedError]; an *[APIError] is a refusal that waiting does not mend.
//
// It survives servers that are away, disconnect or forget, and polls where it may not watch;
// it ends with ctx only. progress, which may be nil, is told each change, from this goroutine.
func (c *Client) Wait(ctx context.Context, s *Submitted, progress func(Progress)) ([]byte, error) {
	w := &wait{c: c, s: s, report: progress}
	w.now = Progress{Name: s.Name, SignerName: s.SignerName, State: Pending}
	for {
		began := time.Now()
		chain, err := w.round(ctx)
		var refusal *APIError
		switch {
		case chain != nil:
			return chain, nil
		case ctx.Err() != nil:
			return nil, fmt.Errorf("waiting for certificate signing request %s: %w: it stays with the cluster, and the same command goes on waiting", s.Name, context.Cause(ctx))
		case w.final(err):
			return nil, err
		}
		w.trouble(err)
		if err == nil && time.Since(began) >= lasting {
			w.backoff.reset()
		}
		rest := time.Duration(0)
		switch {
		case err == nil && w.polls:
			w.poll = min(max(w.poll*3/2, firstPoll), longestPoll)
			rest = w.untilDoubt(spread(w.poll, 0.1))
		case err == nil && time.Since(began) >= lasting:
			// The watch came to its natural end.
		default:
			rest = w.backoff.next()
		}
		if errors.As(err, &refusal) {
			rest = max(rest, min(refusal.retryAfter, longestRest))
		}
		_ = pause(ctx, rest) // the end of ctx is told above
	}
}

type wait struct {
	c      *Client
	s      *Submitted
	report func(Progress)

	now      Progress  // what is known
	told     *Progress // what was reported last
	approved time.Time // when that was seen
	byName   bool      // it may not be listed, so it is read
	polls    bool      // it may not be watched
	poll     time.Duration
	backoff  backoff
	unknown  int // answers in a row that our credentials are not accepted
}

// round looks at the request, and watches it for as long as the watch lasts. It returns the
// chain if there is one, and nil with nil when it is time to look again.
func (w *wait) round(ctx context.Context) ([]byte, error) {
	o, version, err := w.look(ctx)
	if err != nil {
		return nil, err
	}
	w.unknown = 0
	if chain, err := w.judge(o); chain != nil || err != nil || w.polls {
		return chain, err
	}
	return w.watch(ctx, version)
}

// look returns the request and the version of the list that it was in.
func (w *wait) look(ctx context.Context) (*object, string, error) {
	var listErr error
	if !w.byName {
		list, err := w.c.list(ctx, w.s.Name)
		if err == nil {
			for i := range list.Items {
				if list.Items[i].Metadata.Name == w.s.Name {
					return &list.Items[i], list.Metadata.ResourceVersion, nil
				}
			}
			if list.Kind != "CertificateSigningRequestList" {
				return nil, "", w.c.stranger(call{action: "listing certificate signing request " + w.s.Name}, http.StatusOK,
					fmt.Errorf("it is a %q", oneLine(list.Kind, 60)))
			}
			return nil, "", &DeletedError{w.s.Name}
		}
		if !refused(err, http.StatusForbidden) {
			return nil, "", err
		}
		listErr = err
	}
	o, err := w.c.read(ctx, w.s.Name)
	var refusal *APIError
	switch {
	case err == nil:
		w.byName, w.polls = true, true
		return o, "", nil
	case refused(err, http.StatusForbidden) && listErr != nil:
		return nil, "", listErr
	case errors.As(err, &refusal) && refusal.Status == http.StatusNotFound && refusal.named == w.s.Name:
		return nil, "", &DeletedError{w.s.Name}
	}
	return nil, "", err
}

// judge takes note of what o says. It returns the chain if o has it.
func (w *wait) judge(o *object) ([]byte, error) {
	if o.Metadata.Name != w.s.Name || w.s.uid != "" && o.Metadata.UID != w.s.uid {
		return nil, &DeletedError{w.s.Name}
	}
	if denied := o.condition(conditionDenied); denied != nil {
		return nil, denial(o, denied)
	}
	if failed := o.condition(conditionFailed); failed != nil {
		return nil, &FailedError{Name: w.s.Name, SignerName: w.s.SignerName, Reason: oneLine(failed.Reason, 100), Message: oneLine(failed.Message, 300)}
	}
	var chain []byte
	switch {
	case len(o.Status.Certificate) > 0:
		certificates, err := parseChain(w.s.Name, o.Status.Certificate)
		if err == nil {
			err = check(w.s.Name, certificates, w.s.public, time.Now())
		}
		if err != nil {
			return nil, err
		}
		w.now.State, w.now.Overdue = Issued, false
		chain = encodeChain(certificates)
	case o.condition(conditionApproved) != nil:
		if w.now.State = Approved; w.approved.IsZero() {
			w.approved = time.Now()
		}
		w.now.Overdue = time.Since(w.approved) >= signPatience
	default:
		w.now.State = Pending
	}
	w.trouble(nil)
	return chain, nil
}

// untilDoubt is d, or less where an approved request becomes overdue earlier.
func (w *wait) untilDoubt(d time.Duration) time.Duration {
	if w.now.State == Approved && !w.now.Overdue {
		d = min(d, max(time.Until(w.approved.Add(signPatience)), 0))
	}
	return d
}

// watch follows the request from version on. That it breaks is no error: the next look
// tells what is wrong, if anything is.
func (w *wait) watch(ctx context.Context, version string) ([]byte, error) {
	life := watchLife + time.Duration(rand.Int64N(int64(watchLife/2)))
	deadline := time.Now().Add(life + watchGrace)
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	end := time.AfterFunc(w.untilDoubt(life+watchGrace), cancel)
	defer end.Stop()
	res, err := w.begin(ctx, call{action: "watching certificate signing request " + w.s.Name, method: http.MethodGet, query: url.Values{
		"fieldSelector": {"metadata.name=" + w.s.Name}, "watch": {"true"}, "resourceVersion": {version},
		"timeoutSeconds": {strconv.Itoa(int(life / time.Second))},
	}})
	var refusal *APIError
	if errors.As(err, &refusal) {
		switch refusal.Status {
		case http.StatusForbidden, http.StatusNotFound, http.StatusMethodNotAllowed, http.StatusNotImplemented:
			w.polls = true // the server's rules, or what is between us, know no watches
			return nil, nil
		case http.StatusGone:
			return nil, nil
		}
		return nil, err
	}
	if err != nil {
		return nil, nil
	}
	defer func() { _ = res.Body.Close() }()
	for events := newEvents(res.Body); ; {
		e, err := events.next()
		if err != nil || e.kind == "ERROR" { // mostly 410: version is too old by now
			return nil, nil
		}
		if e.object == nil {
			continue
		}
		chain, err := w.judge(e.object)
		if chain == nil && err == nil && e.kind == "DELETED" {
			err = &DeletedError{w.s.Name}
		}
		if chain != nil || err != nil {
			return chain, err
		}
		end.Reset(w.untilDoubt(time.Until(deadline)))
	}
}

// begin sends the request of a watch, which like any other is answered soon.
func (w *wait) begin(ctx context.Context, k call) (*http.Response, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	slow := time.AfterFunc(exchange, func() { cancel(fmt.Errorf("no answer within %v", exchange)) })
	defer slow.Stop()
	res, err := w.c.send(ctx, k)
	if err != nil {
		cancel(nil)
		return nil, err
	}
	// The body is read under ctx, which ends when it is closed.
	res.Body = &closer{res.Body, cancel}
	return res, nil
}

type closer struct {
	io.ReadCloser
	cancel context.CancelCauseFunc
}

func (c *closer) Close() error {
	defer c.cancel(nil)
	return c.ReadCloser.Close()
}

// trouble reports what has changed.
func (w *wait) trouble(err error) {
	w.now.Trouble = err
	if w.report == nil || w.told != nil && w.told.String() == w.now.String() {
		return
	}
	told := w.now
	w.told = &told
	w.report(told)
}

// final tells whether trying again is of no use.
func (w *wait) final(err error) bool {
	var refusal *APIError
	switch err.(type) {
	case nil:
		return false
	case *DeniedError, *FailedError, *DeletedError, *CertificateError:
		return true
	}
	if !errors.As(err, &refusal) || refusal.temporary() {
		return false
	}
	if refusal.Status == http.StatusUnauthorized {
		// Transports fetch new credentials after the first.
		w.unknown++
		return w.unknown > 1
	}
	return true
}
