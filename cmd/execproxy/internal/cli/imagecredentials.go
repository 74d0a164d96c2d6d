package cli

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"os/user"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"time"

	"github.com/spf13/pflag"

	"github.com/execproxy/execproxy/cmd/execproxy/internal/config"
	"github.com/execproxy/execproxy/cmd/execproxy/internal/daemon"
	"github.com/execproxy/execproxy/cmd/execproxy/internal/imagecredentials"
	"github.com/execproxy/execproxy/cmd/execproxy/internal/imagecredentials/ecr"
)

// imageProgram is the name under which kubelet finds us in its provider directory.
const imageProgram = "execproxy-image-credentials"

// imagePrograms are the file names under which we are this command: kubelet calls a
// provider by its file's name. The second is that of ECR's own, which we can stand
// in for.
var imagePrograms = []string{imageProgram, "ecr-credential-provider"}

// imageDaemon is the hidden command of the daemon behind it.
const imageDaemon = "image-credentials-daemon"

// imagePath is where that daemon answers.
const imagePath = "/v1/image-credentials"

// imageTimeout bounds an answer: less than the 60 s after which kubelet kills us.
const imageTimeout = 50 * time.Second

// imageRole is a variable of ECR's own provider: the role of service accounts that
// name none.
const imageRole = "AWS_ECR_ROLE_ARN"

// imageOptions are the flags of `execproxy image-credentials`.
type imageOptions struct {
	registries  string
	fallback    string
	serve       bool
	socket      string
	printConfig bool
	tokens      bool
}

func imageCredentialsCommand() *command {
	var i imageOptions
	return &command{
		name: "image-credentials", short: "kubelet image credential provider: ECR, other registries, docker-credential helpers",
		long: `Reads kubelet's CredentialProviderRequest from standard input and writes the
CredentialProviderResponse to standard output (KEP-2133). Also what a file named
` + strings.Join(imagePrograms, " or ") + ` does: kubelet calls a provider
by its file's name. A daemon of this user, started when it is first needed, holds
the AWS identity and asks a registry once for all pulls. --print-config prints
the file for kubelet's --image-credential-provider-config.`,
		groups: []config.Group{config.GroupIdle, config.GroupLog},
		flags: func(s *pflag.FlagSet, _ *options) {
			s.StringVar(&i.registries, "registries", "", "file that says whose credentials are for which other registry (kind "+imagecredentials.ConfigurationKind+")")
			s.StringVar(&i.fallback, "service-account-fallback", string(imagecredentials.FallbackNever), "who pulls from ECR for a service account without a role: never nobody, node this node's AWS identity")
			s.BoolVar(&i.serve, "serve", false, "be the daemon, in the foreground, at --socket")
			s.StringVar(&i.socket, "socket", "", "ask the daemon that serves at this socket instead of starting one")
			s.BoolVar(&i.printConfig, "print-config", false, "print a CredentialProviderConfig for kubelet and exit")
			s.BoolVar(&i.tokens, "service-account-tokens", false, "with --print-config: pods pull as the roles of their service accounts")
		},
		run: func(ctx context.Context, w *world, o *options) error { return runImageCredentials(ctx, w, o, &i) },
	}
}

// An imageOrder is what the daemon is told on its standard input.
type imageOrder struct {
	ID       string
	Places   daemon.Places
	Idle     time.Duration
	Log      config.Config
	Settings imageSettings
}

// imageSettings decide what a daemon answers.
type imageSettings struct {
	Registries string
	Fallback   imagecredentials.Fallback
	RoleARN    string
}

// An imageAsk is a request on its way to the daemon.
type imageAsk struct {
	Image       string            `json:"image"`
	Token       string            `json:"serviceAccountToken,omitempty"`
	Annotations map[string]string `json:"serviceAccountAnnotations,omitempty"`
}

func runImageCredentials(ctx context.Context, w *world, o *options, i *imageOptions) error {
	if err := o.noOperands(); err != nil {
		return err
	}
	c, err := o.load(w, nil)
	if err != nil {
		return err
	}
	set := imageSettings{Registries: i.registries, Fallback: imagecredentials.Fallback(i.fallback), RoleARN: w.getenv(imageRole)}
	if set.Registries != "" && !filepath.IsAbs(set.Registries) {
		if w.dir == "" {
			return usagef("--registries is a relative path; write it absolute")
		}
		set.Registries = filepath.Join(w.dir, set.Registries)
	}
	if i.socket = strings.TrimPrefix(i.socket, "unix://"); i.socket != "" && !filepath.IsAbs(i.socket) {
		return usagef("--socket is a relative path; write it absolute")
	}
	// What is wrong with it must not wait for a pull.
	if _, err := imagecredentials.New(imagecredentials.Options{Fallback: set.Fallback}); err != nil {
		return usagef("--service-account-fallback: %w", err)
	}
	if i.printConfig {
		return printImageConfig(w, i, set)
	}
	if i.tokens {
		return usagef("--service-account-tokens goes with --print-config; kubelet decides who gets tokens")
	}
	places, err := w.imagePlaces()
	if err != nil {
		return err
	}
	if i.serve {
		return serveImages(ctx, w, c, places, i.socket, set)
	}
	request, err := imagecredentials.DecodeRequest(w.stdin)
	if err != nil {
		return err
	}
	if c.IdleTimeout == 0 {
		c.IdleTimeout = config.DefaultIdleTimeout
	}
	order := &imageOrder{Places: places, Idle: c.IdleTimeout, Settings: set,
		Log: config.Config{LogLevel: c.LogLevel, LogFormat: c.LogFormat, LogFile: c.LogFile}}
	if order.ID, err = daemon.ServiceID("images", w.dir, w.environ, order); err != nil {
		return err
	}
	errand := &daemon.Errand{
		ID: order.ID, Places: places, Path: i.socket, Command: imageDaemon, Order: order, Environ: w.environ, LogFile: c.LogFile,
	}
	ctx, cancel := context.WithTimeout(ctx, imageTimeout)
	defer cancel()
	var answer imagecredentials.Answer
	ask := imageAsk{Image: request.Image, Token: request.ServiceAccountToken, Annotations: request.ServiceAccountAnnotations}
	if err := errand.Do(ctx, imagePath, ask, &answer); err != nil {
		return err
	}
	data, err := answer.Encode(request.APIVersion)
	if err != nil {
		return err
	}
	_, err = w.stdout.Write(data)
	return err
}

// imagePlaces are this user's, also where nobody set HOME: kubelet runs as a
// system service.
func (w *world) imagePlaces() (daemon.Places, error) {
	return daemon.FindPlaces(func(name string) string {
		v := w.getenv(name)
		if v == "" && name == "HOME" && runtime.GOOS != "windows" {
			if u, err := user.Current(); err == nil {
				return u.HomeDir
			}
		}
		return v
	})
}

func printImageConfig(w *world, i *imageOptions, set imageSettings) error {
	var patterns, args []string
	if set.Registries != "" {
		c, err := imagecredentials.ReadConfiguration(set.Registries)
		if err != nil {
			return err
		}
		patterns, args = c.Matches(), append(args, "--registries="+set.Registries)
	}
	if set.Fallback == imagecredentials.FallbackNode {
		args = append(args, "--service-account-fallback="+i.fallback)
	}
	if i.socket != "" {
		args = append(args, "--socket="+i.socket)
	}
	return write(w.stdout, imagecredentials.KubeletConfig(imageProgram, patterns, args, i.tokens))
}

// imageService is the daemon.
func imageService(w *world, c *config.Config, places daemon.Places, set imageSettings) (*daemon.Service, error) {
	log := daemon.NewLogger(os.Stderr, c)
	aws := ecr.NewClient(log)
	p, err := imagecredentials.New(imagecredentials.Options{
		Configuration: set.Registries, Fallback: set.Fallback, RoleARN: set.RoleARN, ECR: aws, Logger: log,
	})
	if err != nil {
		return nil, err
	}
	mux := http.NewServeMux()
	mux.HandleFunc("POST "+imagePath, func(rw http.ResponseWriter, r *http.Request) {
		var ask imageAsk
		daemon.ReplyService(rw, r, &ask, func() (any, error) {
			return p.Answer(r.Context(), &imagecredentials.Request{
				Image: ask.Image, ServiceAccountToken: ask.Token, ServiceAccountAnnotations: ask.Annotations,
			})
		})
	})
	return &daemon.Service{
		Places: places, Version: w.version, Handler: mux, Logger: log,
		Status: func(s *daemon.Status) { s.Server, s.Auth, s.Identity = "registries", "image-credentials", aws.Name() },
	}, nil
}

// serveImages is the daemon as a sidecar: somebody else starts and ends it.
func serveImages(ctx context.Context, w *world, c *config.Config, places daemon.Places, path string, set imageSettings) error {
	if path == "" {
		return usagef("--serve needs --socket PATH, which the provider's args name, too")
	}
	s, err := imageService(w, c, places, set)
	if err != nil {
		return err
	}
	if s.ID, err = daemon.ServiceID("images", w.dir, w.environ, []any{set, path}); err != nil {
		return err
	}
	s.Path = path
	ctx, _, stop := daemon.Signals(ctx)
	defer stop()
	return s.Run(ctx)
}

// runImageDaemon is the process that the provider starts.
func runImageDaemon(ctx context.Context, w *world, _ *options) error {
	out, ok := w.stdout.(*os.File)
	var order imageOrder
	if err := json.NewDecoder(w.stdin).Decode(&order); err != nil || !ok || order.ID == "" {
		return fmt.Errorf("%q is execproxy's own way to start its daemon; run `execproxy image-credentials --serve` for one in the foreground", imageDaemon)
	}
	s, err := imageService(w, &order.Log, order.Places, order.Settings)
	if err != nil {
		return daemon.Fail(out, err)
	}
	s.ID, s.Idle = order.ID, order.Idle
	return daemon.Detach(ctx, out, s)
}

// calledAsProvider tells whether the program's file has one of the names under
// which it is a provider. A command that is named counts more.
func (w *world) calledAsProvider() bool {
	name := filepath.Base(w.program)
	if runtime.GOOS == "windows" {
		name = strings.TrimSuffix(strings.ToLower(name), ".exe")
	}
	if !slices.Contains(imagePrograms, name) {
		return false
	}
	return len(w.args) == 0 || strings.HasPrefix(w.args[0], "-") && w.args[0] != "--version"
}
