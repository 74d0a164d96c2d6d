package cluster

import (
	"encoding/json"
	"fmt"
	"maps"
	"path/filepath"

	"github.com/execproxy/execproxy/tests/integration/internal/pki"
)

const (
	cniPlugins       = "/usr/lib/cni" // where Debian has them
	containerdSocket = "/run/containerd.sock"
)

// initScript is the node's first process. What the kubelet and the CNI plugin
// want of the kernel's settings they find already, in files that are in the
// node's eyes alone: the machine keeps its own.
const initScript = `set -e
umask 022
mount --make-rprivate /
mount --make-rshared /
mount -t proc proc /proc
for dir in /run /var/lib /var/log; do mount -t tmpfs -o mode=755 node $dir; done
mkdir /run/sysctl
while read -r key value; do
	[ -e /proc/sys/$key ] || continue
	echo $value >/run/sysctl/value
	mv /run/sysctl/value /run/sysctl/${key##*/}
	mount --bind /run/sysctl/${key##*/} /proc/sys/$key
done <<end
vm/overcommit_memory 1
vm/panic_on_oom 0
kernel/panic 10
kernel/panic_on_oops 1
kernel/keys/root_maxkeys 1000000
kernel/keys/root_maxbytes 25000000
net/ipv4/ip_forward 1
end
containerd --config %q &
wait $!
`

const containerdConfig = `version = 2
root = "/var/lib/containerd"
state = "/run/containerd"
disabled_plugins = ["io.containerd.snapshotter.v1.btrfs", "io.containerd.snapshotter.v1.zfs", "io.containerd.snapshotter.v1.aufs", "io.containerd.snapshotter.v1.devmapper"]
[grpc]
  address = %[1]q
[plugins."io.containerd.internal.v1.opt"]
  path = "/var/lib/containerd-opt"
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = %[2]q
  stream_server_address = "127.0.0.1"
  disable_apparmor = true
  # Not every root has CAP_SYS_RESOURCE.
  restrict_oom_score_adj = true
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = %[3]q
    conf_dir = %[4]q
  [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
    runtime_type = "io.containerd.runc.v2"
    [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc.options]
      SystemdCgroup = false
`

// files writes what the node's programs read.
func (n *Node) files() error {
	path := func(name string) string { return filepath.Join(n.Dir, name) }
	pair, err := n.c.CA.Issue(pki.Options{CommonName: "system:node:" + n.Name, Hosts: []string{n.Name}})
	if err != nil {
		return err
	}
	cert, key, err := pair.Write(n.Dir, "kubelet")
	if err != nil {
		return err
	}
	if n.options.Kubeconfig == "" {
		if n.options.Kubeconfig, err = n.kubeconfig(); err != nil {
			return err
		}
	}
	network, err := json.Marshal(map[string]any{
		"cniVersion": "0.4.0", "name": "test", "plugins": []any{map[string]any{
			"type": "ptp", "ipam": map[string]any{
				"type": "host-local", "dataDir": "/run/cni", "subnet": n.subnet.String(),
				"routes": []any{map[string]any{"dst": "0.0.0.0/0"}},
			},
		}},
	})
	if err != nil {
		return err
	}
	config := map[string]any{
		"apiVersion": "kubelet.config.k8s.io/v1beta1", "kind": "KubeletConfiguration",
		"address": n.Name, "port": n.Port, "readOnlyPort": 0, "healthzPort": 0,
		"authentication": map[string]any{
			"anonymous": map[string]any{"enabled": false}, "webhook": map[string]any{"enabled": true},
			"x509": map[string]any{"clientCAFile": n.c.path("ca.crt")},
		},
		"authorization": map[string]any{"mode": "Webhook"},
		"tlsCertFile":   cert, "tlsPrivateKeyFile": key,
		"containerRuntimeEndpoint": "unix://" + containerdSocket,
		"cgroupDriver":             "cgroupfs", "cgroupRoot": "/" + n.cgroup.name,
		"failCgroupV1": false, "failSwapOn": false, "makeIPTablesUtilChains": false,
		"clusterDomain": "cluster.local", "clusterDNS": []string{"10.96.0.10"}, // without it each pod gets a warning
		"resolvConf": path("resolv.conf"),
		// Nothing is evicted and no image collected, however full the machine is.
		"evictionHard": map[string]any{
			"memory.available": "50Mi", "nodefs.available": "0%", "nodefs.inodesFree": "0%", "imagefs.available": "0%",
		},
		"imageGCHighThresholdPercent": 100,
	}
	maps.Copy(config, n.options.Config)
	kubelet, err := json.Marshal(config)
	if err != nil {
		return err
	}
	for name, content := range map[string]string{
		"init":             fmt.Sprintf(initScript, path("containerd.toml")),
		"containerd.toml":  fmt.Sprintf(containerdConfig, containerdSocket, pauseImage, cniPlugins, n.Dir),
		"10-test.conflist": string(network),
		"kubelet.json":     string(kubelet),
		"resolv.conf":      "nameserver 10.96.0.10\n",
	} {
		if err := pki.WriteFile(path(name), []byte(content)); err != nil {
			return err
		}
	}
	return nil
}
