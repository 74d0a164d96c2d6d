package daemon

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/execproxy/execproxy/cmd/execproxy/internal/config"
	"github.com/execproxy/execproxy/proxy/socket"
)

// A Service is a daemon that is no proxy. It answers requests on its control
// socket and has the life of one: found by its id, started just in time by whoever
// needs it, listed by `status`, ended by `stop` or when nobody called for a while.
type Service struct {
	ID      string
	Places  Places
	Path    string        // the socket, instead of the id's own in the runtime directory
	Idle    time.Duration // without a connection; 0: never
	Version string
	Handler http.Handler
	Status  func(*Status) // completes the status; may be nil
	Logger  *slog.Logger
	Ready   func() error // called once it accepts; may be nil
}

// ServiceID names a service by everything that decides what it answers, and by the
// environment, in which the programs that it runs find who they are: digits from
// which nothing can be read.
func ServiceID(name, dir string, environ []string, what any) (string, error) {
	environ = settled(environ, dir)
	data, err := json.Marshal(struct {
		What    any
		Environ []string
	}{what, variables(chainedEnviron(environ), chainedVariable)})
	if err != nil {
		return "", err
	}
	sum := sha256.Sum256(data)
	return name + "-" + hex.EncodeToString(sum[:8]), nil
}

// ServiceSocket is where a service answers that has no Path of its own.
func (p Places) ServiceSocket(id string) string { return controlPath(p.Socket(id)) }

// Run serves until ctx ends, nobody called for the idle time, or it is asked to
// stop. An error before Ready was called is a *StartError.
func (s *Service) Run(ctx context.Context) error {
	path := s.Path
	if path == "" {
		path = s.Places.ServiceSocket(s.ID)
	}
	early := func(err error) error { return &StartError{err} }
	// It runs others' programs, so the limits stay as they are.
	if err := harden(false); err != nil {
		return early(err)
	}
	if _, err := socket.OpenDir(filepath.Dir(path)); err != nil {
		return early(err)
	}
	api := strings.TrimSuffix(path, controlPath(""))
	waiting, cancel := context.WithTimeout(ctx, lockTimeout)
	defer cancel()
	lock, err := socket.Acquire(waiting, lifePath(api))
	if errors.Is(err, context.DeadlineExceeded) {
		err = fmt.Errorf("another one serves at %s; end it, or name another socket with --socket", path)
	}
	if err != nil {
		return early(err)
	}
	defer lock.Remove()
	ln, err := socket.ListenConfig{Logger: s.Logger}.Listen(path)
	if err != nil {
		return early(err)
	}
	ending := make(chan cause, 1)
	end := func(why cause) {
		select {
		case ending <- why:
		default:
		}
	}
	life := newLife(s.Idle, end)
	defer life.close()
	srv := &http.Server{
		Handler: s.mux(end), ReadTimeout: 10 * time.Second, IdleTimeout: 10 * time.Second,
		ErrorLog: slog.NewLogLogger(s.Logger.Handler(), slog.LevelDebug),
	}
	var serving sync.WaitGroup
	serving.Go(func() {
		if err := srv.Serve(life.count(ln)); !errors.Is(err, http.ErrServerClosed) {
			s.Logger.Error("listener failed", "address", path, "error", err)
			end(causeFailed)
		}
	})
	shut := func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), config.DefaultDrainTimeout)
		defer cancel()
		_ = srv.Shutdown(ctx)
		_ = srv.Close()
		serving.Wait()
	}
	life.begin()
	if s.Ready != nil {
		if err := s.Ready(); err != nil {
			shut()
			return early(err)
		}
	}
	s.Logger.Info("ready", "version", s.Version, "id", s.ID, "listen", path)
	if err := letGoOfStart(); err != nil {
		s.Logger.Debug("the start's memory is kept", "error", err)
	}
	var why cause
	select {
	case why = <-ending:
	case <-ctx.Done():
		why = causeSignal
	}
	s.Logger.Info("ending", "cause", string(why))
	shut()
	if why == causeFailed {
		return errors.New("a listener failed; the log says which")
	}
	return nil
}

func (s *Service) mux(end func(cause)) http.Handler {
	started := time.Now().UTC().Truncate(time.Second)
	mux := http.NewServeMux()
	mux.HandleFunc("GET "+pathStatus, func(w http.ResponseWriter, _ *http.Request) {
		st := Status{ID: s.ID, PID: os.Getpid(), Version: s.Version, StartedAt: started, Listeners: []string{}, Life: lifeIdle, Locks: []string{}}
		if s.Idle == 0 {
			st.Life = lifeServe
		}
		if s.Status != nil {
			s.Status(&st)
		}
		reply(w, http.StatusOK, st)
	})
	mux.HandleFunc("POST "+pathAnew, func(w http.ResponseWriter, _ *http.Request) { reply(w, http.StatusOK, anew{}) })
	mux.HandleFunc("POST "+pathStop, func(w http.ResponseWriter, _ *http.Request) {
		reply(w, http.StatusOK, struct{}{})
		end(causeStop)
	})
	mux.Handle("/", s.Handler)
	return mux
}

// aliveTimeout is how long a service may take to say that it has a request.
const aliveTimeout = 1500 * time.Millisecond

// An Errand is a request to a service, which is started if it does not run.
type Errand struct {
	ID      string
	Places  Places
	Path    string // a socket whose service nobody starts for us
	Command string // the hidden command that is the service
	Order   any    // what it reads on its standard input, in JSON
	Environ []string
	LogFile string // "": the id's own in the state directory
}

// Do posts in to the service and decodes what it answers into out. A service that
// is there and does not take the request at once is an error, within two seconds:
// what it does with it may take longer.
func (e *Errand) Do(ctx context.Context, urlPath string, in, out any) error {
	path := e.Path
	if path == "" {
		path = e.Places.ServiceSocket(e.ID)
	}
	if err := socket.CheckPath(path); err != nil {
		return err
	}
	call := func() error { return serviceCall(ctx, path, urlPath, in, out) }
	if e.Path != "" {
		err := call()
		if errors.Is(err, errNobody) {
			return fmt.Errorf("nobody answers at %s; start `execproxy image-credentials --serve --socket %s` there", path, path)
		}
		return err
	}
	if _, err := socket.OpenDir(e.Places.Runtime); err != nil {
		return err
	}
	if err := call(); !errors.Is(err, errNobody) {
		return err
	}
	waiting, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	start, err := socket.Acquire(waiting, startPath(e.Places.Socket(e.ID)))
	if err != nil {
		return fmt.Errorf("waiting for another start of the daemon: %w", err)
	}
	defer start.Remove()
	if err := call(); !errors.Is(err, errNobody) {
		return err
	}
	if err := e.start(waiting); err != nil {
		return err
	}
	err = call()
	if errors.Is(err, errNobody) {
		return fmt.Errorf("the daemon ended right after its start; its log is %s", e.log())
	}
	return err
}

func (e *Errand) log() string { return logPath(&config.Config{LogFile: e.LogFile}, e.Places, e.ID) }

func (e *Errand) start(ctx context.Context) error {
	log, err := openDaemonLog(&config.Config{LogFile: e.LogFile}, e.Places, e.ID)
	if err != nil {
		return err
	}
	defer log.Close()
	data, err := json.Marshal(e.Order)
	if err != nil {
		return err
	}
	environ := e.Environ
	if cwd, err := os.Getwd(); err == nil {
		environ = settled(environ, cwd)
	}
	return background(ctx, e.Command, data, log, environ)
}

// serviceCall makes one request. errNobody: no service accepts at path.
func serviceCall(ctx context.Context, path, urlPath string, in, out any) error {
	c := &controller{path: path, client: &http.Client{Transport: &http.Transport{
		DisableKeepAlives: true, ResponseHeaderTimeout: aliveTimeout,
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			ctx, cancel := context.WithTimeout(ctx, aliveTimeout)
			defer cancel()
			return socket.Dial(ctx, path)
		},
	}}}
	var answer struct {
		Error  string          `json:"error"`
		Result json.RawMessage `json:"result"`
	}
	err := c.call(ctx, http.MethodPost, urlPath, in, &answer)
	var n net.Error
	switch {
	case errors.As(err, &n) && n.Timeout() && ctx.Err() == nil:
		return fmt.Errorf("the daemon at %s does not answer; end it with `execproxy stop --all`, or kill it", path)
	case err != nil:
		return err
	case answer.Error != "":
		return errors.New(answer.Error)
	}
	return json.Unmarshal(answer.Result, out)
}

// ReplyService answers an Errand: at once that it is here, then with what work
// returns.
func ReplyService(w http.ResponseWriter, r *http.Request, in any, work func() (any, error)) {
	dec := json.NewDecoder(http.MaxBytesReader(w, r.Body, maxAsk))
	dec.DisallowUnknownFields()
	if err := dec.Decode(in); err != nil {
		reply(w, http.StatusBadRequest, &refusal{Message: "unreadable request; it is of another version; end the daemons of the old one with `execproxy stop --all`"})
		return
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(http.StatusOK)
	_ = http.NewResponseController(w).Flush() // who is gone gets nothing either way
	answer := map[string]any{}
	if result, err := work(); err != nil {
		answer["error"] = err.Error()
	} else {
		answer["result"] = result
	}
	_ = json.NewEncoder(w).Encode(answer)
}

// Detach runs a service in the process that an Errand started: it tells over out
// how its start went.
func Detach(ctx context.Context, out *os.File, s *Service) error {
	ctx, _, stop := Signals(ctx)
	defer stop()
	s.Ready = func() error {
		if err := greetOver(out, greeting{Ready: true}); err != nil {
			s.Logger.Warn("whoever started this is gone", "error", err)
		}
		return nil
	}
	err := s.Run(ctx)
	var early *StartError
	if errors.As(err, &early) {
		return errors.Join(err, greetOver(out, greeting{Error: err.Error()}))
	}
	return err
}

// Fail tells whoever started this process why it cannot run.
func Fail(out *os.File, err error) error {
	return errors.Join(err, greetOver(out, greeting{Error: err.Error()}))
}

// NewLogger logs as the configuration says, to w.
func NewLogger(w io.Writer, c *config.Config) *slog.Logger {
	return newLogger(w, c, new(slog.LevelVar))
}
