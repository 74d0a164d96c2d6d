// Package credhelper runs docker-credential-* programs, which keep registry
// credentials for container tools, and reads which registry has which program in
// such a tool's config.json.
package credhelper

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/execproxy/execproxy/cmd/execproxy/internal/process"
)

// Bounds of a program's run and of what it prints.
const (
	Timeout   = 30 * time.Second
	MaxOutput = 1 << 20

	waitDelay = 2 * time.Second // for a grandchild that keeps our pipe open
)

// ErrNotFound says that the program has nothing for the registry.
var ErrNotFound = errors.New("credentials not found")

// notFound is how every helper says so, on standard output.
const notFound = "credentials not found"

// tokenUser stands for a user name where the secret is an identity token, which
// kubelet has no use for.
const tokenUser = "<token>"

var programName = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`^[a-zA-Z0-9][a-zA-Z0-9._-]{0,63}$`) })

// CheckName refuses a helper's name that could be a path.
func CheckName(name string) error {
	if !programName().MatchString(name) {
		return fmt.Errorf("%.100q is no helper; write NAME of docker-credential-NAME", name)
	}
	return nil
}

// hub is what the default registry is called in these files, and by these programs.
const hub = "https://index.docker.io/v1/"

func serverURL(registry string) string {
	if registry == "docker.io" || registry == "index.docker.io" {
		return hub
	}
	return registry
}

// Get asks docker-credential-NAME for a registry, which is HOST or HOST:PORT. What
// the program prints when it fails is in no error: it may be a secret.
func Get(ctx context.Context, name, registry string) (username, secret string, err error) {
	if err := CheckName(name); err != nil {
		return "", "", err
	}
	program := "docker-credential-" + name
	byHand := fmt.Sprintf("try `echo %s | %s get`", serverURL(registry), program)
	out, err := Run(ctx, program, []string{"get"}, serverURL(registry))
	if err != nil {
		if bytes.Contains(out, []byte(notFound)) {
			return "", "", ErrNotFound
		}
		return "", "", fmt.Errorf("%w; %s", err, byHand)
	}
	var d struct{ ServerURL, Username, Secret string }
	switch err := json.Unmarshal(out, &d); {
	case err != nil:
		return "", "", fmt.Errorf("%s answered something else than its JSON; %s", program, byHand)
	case d.Username == tokenUser:
		return "", "", fmt.Errorf("%s has an identity token for %s, which kubelet cannot use; store a user name and a password", program, registry)
	case d.Secret == "":
		return "", "", ErrNotFound
	case d.ServerURL != "" && bare(d.ServerURL) != bare(serverURL(registry)):
		return "", "", fmt.Errorf("%s was asked for %s and answered for another registry; %s", program, registry, byHand)
	}
	return d.Username, d.Secret, nil
}

// bare is the registry that a server URL is of.
func bare(url string) string {
	url = strings.TrimPrefix(strings.TrimPrefix(url, "https://"), "http://")
	host, _, _ := strings.Cut(url, "/")
	return strings.ToLower(host)
}

// Run runs a program to its end and returns what it printed, also where it fails. One
// that takes too long or prints too much ends with what it started.
func Run(ctx context.Context, program string, args []string, stdin string) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, Timeout)
	defer cancel()
	cmd := exec.CommandContext(ctx, program, args...)
	cmd.Stdin = strings.NewReader(stdin)
	cmd.WaitDelay = waitDelay
	process.Apart(cmd)
	out := &bounded{left: MaxOutput, full: cancel}
	cmd.Stdout = out
	err := cmd.Run()
	var exit *exec.ExitError
	switch {
	case out.over:
		return nil, fmt.Errorf("%s printed more than %d bytes", program, MaxOutput)
	case ctx.Err() != nil:
		return nil, fmt.Errorf("%s did not end within %v", program, Timeout)
	case errors.Is(err, exec.ErrNotFound):
		return nil, fmt.Errorf("%s is not in PATH; install it, or set PATH in the env of kubelet's CredentialProviderConfig", program)
	case errors.As(err, &exit):
		return out.buf.Bytes(), fmt.Errorf("%s failed: %s", program, exit.ProcessState)
	case err != nil && !errors.Is(err, exec.ErrWaitDelay): // it ended well; an agent that it left behind did not
		return out.buf.Bytes(), fmt.Errorf("running %s: %w", program, err)
	}
	return out.buf.Bytes(), nil
}

// bounded is a buffer with an end. The byte too many ends the program. The buffer is
// not embedded: its ReadFrom would go past Write.
type bounded struct {
	buf  bytes.Buffer
	left int
	over bool
	full func()
}

func (b *bounded) Write(p []byte) (int, error) {
	if len(p) > b.left {
		b.over = true
		b.full()
		return 0, io.ErrShortWrite
	}
	b.left -= len(p)
	return b.buf.Write(p)
}

// maxConfig bounds a config.json.
const maxConfig = 4 << 20

// Helper reads which helper a config.json has for a registry in its credHelpers;
// "" is none. Everything else in the file is left alone: it is another tool's.
func Helper(path, registry string) (string, error) {
	if info, err := os.Stat(path); err == nil && !info.Mode().IsRegular() { // a FIFO would wait for a writer
		return "", fmt.Errorf("reading the docker configuration %s: not a readable file of at most %d bytes", path, maxConfig)
	}
	f, err := os.Open(path)
	if err != nil {
		return "", fmt.Errorf("reading the docker configuration: %w", err)
	}
	defer f.Close()
	data, err := io.ReadAll(io.LimitReader(f, maxConfig+1))
	if err != nil || len(data) > maxConfig {
		return "", fmt.Errorf("reading the docker configuration %s: not a readable file of at most %d bytes", path, maxConfig)
	}
	helpers, err := parse(data)
	if err != nil {
		return "", fmt.Errorf("reading the docker configuration %s: %w", path, err)
	}
	want := bare(serverURL(registry))
	servers := slices.Sorted(maps.Keys(helpers))
	if _, exact := helpers[registry]; exact {
		servers = []string{registry}
	}
	for _, server := range servers {
		if name := helpers[server]; bare(serverURL(server)) == want {
			if err := CheckName(name); err != nil {
				return "", fmt.Errorf("the docker configuration %s, credHelpers of %s: %w", path, registry, err)
			}
			return name, nil
		}
	}
	return "", nil
}

func parse(data []byte) (map[string]string, error) {
	var d struct {
		CredHelpers map[string]string `json:"credHelpers"`
	}
	if err := json.Unmarshal(data, &d); err != nil {
		return nil, errors.New("it is not JSON with credHelpers of registry to helper") // the text may hold passwords
	}
	return d.CredHelpers, nil
}
