package cluster

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/execproxy/execproxy/tests/integration/internal/pki"
	"github.com/execproxy/execproxy/tests/integration/internal/proc"
)

// NodeOptions say what is special about a node.
type NodeOptions struct {
	// Name is a loopback address, which no other node of the cluster has: it is
	// the node's name too, and where its kubelet listens. Default 127.0.0.1.
	Name string
	// Kubeconfig is the kubelet's. Default: one with a client certificate for
	// system:node:NAME that the cluster's authority signed.
	Kubeconfig string
	// Config has fields of KubeletConfiguration that are set instead of ours.
	Config map[string]any
	// Args are added to the kubelet's arguments.
	Args []string
	// Env, of the form NAME=value, is added to the kubelet's environment, which
	// is this process's otherwise.
	Env []string
}

// Node is a real one: containerd, runc and a kubelet, for which the API server's
// exec, logs and port-forward work, and pods have a network that the machine's
// programs reach. Pods reach neither each other's services nor the API server's.
//
// Its programs have a pid and a mount namespace of their own, with file systems
// in memory over /run, /var/lib and /var/log. When its first process ends, and
// that is when this one does at the latest, the kernel ends all of the node's,
// and mounts, network devices and routes go with them.
type Node struct {
	Name string
	Port int    // of the kubelet
	Dir  string // configuration and logs
	// KubeletLog and ContainerdLog are files.
	KubeletLog, ContainerdLog string

	c          *Cluster
	options    NodeOptions
	subnet     *net.IPNet
	cgroup     *nodeGroup
	containerd *proc.Process
	kubelet    *proc.Process
}

// MissingError tells of a program or a right that a node needs.
type MissingError struct{ What, Package string }

func (e *MissingError) Error() string {
	if e.Package == "" {
		return "a node needs " + e.What
	}
	return fmt.Sprintf("a node needs %s: install Debian's package %s", e.What, e.Package)
}

// StartNode starts a node and waits until it is ready. A *MissingError says what
// has to be installed, and ErrNoCgroups that this machine cannot have a node.
func (c *Cluster) StartNode(ctx context.Context, o NodeOptions) (_ *Node, err error) {
	if o.Name == "" {
		o.Name = "127.0.0.1"
	}
	if err := programs(); err != nil {
		return nil, err
	}
	n := &Node{Name: o.Name, Dir: c.path("node-" + o.Name), c: c, options: o}
	n.KubeletLog, n.ContainerdLog = n.Dir+"-kubelet.log", n.Dir+"-containerd.log" // where Cluster.Logs finds them
	defer func() {
		if err != nil {
			n.Stop()
		}
	}()
	if n.Port, err = FreePort(0); err != nil {
		return nil, err
	}
	if n.subnet, err = freeSubnet(n.Port); err != nil {
		return nil, err
	}
	if n.cgroup, err = newCgroup(); err != nil {
		return nil, err
	}
	if err := os.RemoveAll(n.Dir); err != nil {
		return nil, err
	}
	if err := os.Mkdir(n.Dir, 0o755); err != nil {
		return nil, err
	}
	if err := n.files(); err != nil {
		return nil, fmt.Errorf("configuring node %s: %w", n.Name, err)
	}
	archives, err := images(ctx, n.Dir)
	if err != nil {
		return nil, err
	}
	if err := n.startContainerd(ctx, archives); err != nil {
		return nil, err
	}
	if err := n.StartKubelet(); err != nil {
		return nil, err
	}
	return n, n.AwaitReady(ctx)
}

// programs looks for what a node is made of.
func programs() error {
	if os.Getuid() != 0 {
		return &MissingError{What: "root: run the tests as root (sudo, or in a container that may mount)"}
	}
	for name, from := range map[string]string{
		"containerd": "containerd", "ctr": "containerd", "runc": "runc", "nsenter": "util-linux",
		filepath.Join(cniPlugins, "ptp"): "containernetworking-plugins",
	} {
		if _, err := exec.LookPath(name); err != nil {
			return &MissingError{What: name, Package: from}
		}
	}
	return nil
}

// freeSubnet returns a network of 254 addresses that this machine uses for
// nothing; another port gives another one.
func freeSubnet(port int) (*net.IPNet, error) {
	addrs, err := net.InterfaceAddrs()
	if err != nil {
		return nil, err
	}
next:
	for i := range 96 {
		subnet := &net.IPNet{IP: net.IPv4(10, byte(100+(port>>8+i)%96), byte(port), 0).To4(), Mask: net.CIDRMask(24, 32)}
		for _, a := range addrs {
			if used, ok := a.(*net.IPNet); ok && (used.Contains(subnet.IP) || subnet.Contains(used.IP)) {
				continue next
			}
		}
		return subnet, nil
	}
	return nil, errors.New("all networks for pods are in use, 10.100.0.0 to 10.195.255.255")
}

// startContainerd starts the node's first process, and containerd in it.
func (n *Node) startContainerd(ctx context.Context, archives []string) (err error) {
	cmd := exec.Command("/bin/sh", filepath.Join(n.Dir, "init"))
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWPID | syscall.CLONE_NEWNS}
	if n.containerd, err = proc.Launch("containerd", n.ContainerdLog, cmd); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, startDeadline)
	defer cancel()
	ctr := func(ctx context.Context, args ...string) error {
		out, err := run(ctx, n.command(append([]string{"ctr", "--address", containerdSocket, "--namespace", "k8s.io"}, args...)...))
		if err != nil {
			return fmt.Errorf("ctr %s: %w\n%s", strings.Join(args, " "), err, out)
		}
		return nil
	}
	if err := n.containerd.Await(ctx, func(ctx context.Context) error { return ctr(ctx, "version") }); err != nil {
		return err
	}
	for _, a := range archives {
		if err := ctr(ctx, "images", "import", a); err != nil {
			return err
		}
	}
	return nil
}

// command prepares a program that runs inside the node.
func (n *Node) command(args ...string) *exec.Cmd {
	return exec.Command("nsenter", append([]string{"--target", fmt.Sprint(n.containerd.PID()), "--mount", "--pid", "--"}, args...)...)
}

// run runs a short program that ends with this process.
func run(ctx context.Context, cmd *exec.Cmd) (string, error) {
	var out strings.Builder
	cmd.Stdout, cmd.Stderr = &out, &out
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := proc.StartCmd(cmd); err != nil {
		return "", err
	}
	stop := context.AfterFunc(ctx, func() { _ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) })
	defer stop()
	err := cmd.Wait()
	return out.String(), err
}

// StartKubelet starts the kubelet again, after StopKubelet. It does not wait
// until the node is ready.
func (n *Node) StartKubelet() (err error) {
	cmd := n.command(append([]string{
		n.c.Bin["kubelet"], "--config=" + filepath.Join(n.Dir, "kubelet.json"),
		"--kubeconfig=" + n.options.Kubeconfig, "--hostname-override=" + n.Name,
	}, n.options.Args...)...)
	cmd.Env = append(os.Environ(), n.options.Env...)
	n.kubelet, err = proc.Launch("kubelet", n.KubeletLog, cmd)
	return err
}

// StopKubelet kills the kubelet. What runs in pods runs on.
func (n *Node) StopKubelet() { n.kubelet.Kill() }

// Kubelet is the kubelet's process.
func (n *Node) Kubelet() *proc.Process { return n.kubelet }

// Stop ends the node and all that it made on this machine.
func (n *Node) Stop() {
	if n.kubelet != nil {
		n.kubelet.Kill()
	}
	if n.containerd != nil {
		n.containerd.Kill()
	}
	if n.cgroup != nil {
		n.cgroup.remove()
	}
	// The kernel takes the pods' network devices away a moment after their processes.
	for deadline := time.Now().Add(10 * time.Second); n.subnet != nil && n.linked() && time.Now().Before(deadline); {
		time.Sleep(20 * time.Millisecond)
	}
}

// linked tells whether this machine has a device for a pod of the node.
func (n *Node) linked() bool {
	addrs, _ := net.InterfaceAddrs()
	for _, a := range addrs {
		if used, ok := a.(*net.IPNet); ok && n.subnet.Contains(used.IP) {
			return true
		}
	}
	return false
}

// AwaitReady waits until the API server knows the node as ready, and this
// kubelet answers.
func (n *Node) AwaitReady(ctx context.Context) error {
	client, err := n.c.AdminClient()
	if err != nil {
		return err
	}
	defer client.CloseIdleConnections()
	ctx, cancel := context.WithTimeout(ctx, startDeadline)
	defer cancel()
	return n.kubelet.Await(ctx, func(ctx context.Context) error {
		if err := ok(ctx, client, "https://"+net.JoinHostPort(n.Name, fmt.Sprint(n.Port))+"/healthz"); err != nil {
			return err
		}
		return n.ready(ctx, client)
	})
}

// Ready returns nil when the API server knows the node as ready now.
func (n *Node) Ready(ctx context.Context) error {
	client, err := n.c.AdminClient()
	if err != nil {
		return err
	}
	defer client.CloseIdleConnections()
	return n.ready(ctx, client)
}

func (n *Node) ready(ctx context.Context, client *http.Client) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, n.c.API.URL+"/api/v1/nodes/"+n.Name, nil)
	if err != nil {
		return err
	}
	resp, err := client.Do(req)
	if err != nil {
		return err
	}
	defer func() { _ = resp.Body.Close() }()
	var node struct {
		Message string // of an error
		Status  struct {
			Conditions []struct{ Type, Status, Message string }
		}
	}
	if err := json.NewDecoder(resp.Body).Decode(&node); err != nil {
		return fmt.Errorf("node %s: %w", n.Name, err)
	}
	for _, c := range node.Status.Conditions {
		if c.Type == "Ready" && c.Status == "True" {
			return nil
		} else if c.Type == "Ready" {
			return fmt.Errorf("node %s is not ready: %s", n.Name, c.Message)
		}
	}
	return fmt.Errorf("node %s is not ready: %s %s", n.Name, resp.Status, node.Message)
}

// kubeconfig writes the one that a node has by default.
func (n *Node) kubeconfig() (string, error) {
	pair, err := n.c.CA.Issue(pki.Options{CommonName: "system:node:" + n.Name, Organizations: []string{"system:nodes"}})
	if err != nil {
		return "", err
	}
	cert, key, err := pair.Write(n.Dir, "node")
	if err != nil {
		return "", err
	}
	path := filepath.Join(n.Dir, "kubeconfig")
	return path, pki.WriteFile(path, fmt.Appendf(nil, `apiVersion: v1
kind: Config
current-context: test
contexts: [{name: test, context: {cluster: test, user: test}}]
clusters: [{name: test, cluster: {server: %q, certificate-authority: %q}}]
users: [{name: test, user: {client-certificate: %q, client-key: %q}}]
`, n.c.API.URL, n.c.path("ca.crt"), cert, key))
}
