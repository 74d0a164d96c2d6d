package cli

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestProviderFile(t *testing.T) {
	code, out, errs := play(t, map[string]string{"EXECPROXY_LOG_LEVEL": "warn"}, "kubeconfig", "--cluster-profile-provider", "example.com/fleet", "--command", "/usr/bin/execproxy",
		"--auth", "sigv4", "--aws-profile", "fleet", "--sign-target", "--idle-timeout", "15m")
	if code != 0 || errs != "" {
		t.Errorf("exit %d, stderr %q", code, errs)
	}
	golden(t, "testdata/provider-sigv4.json", out)

	code, out, errs = play(t, nil, "kubeconfig", "--cluster-profile-provider=fleet", "--command", "execproxy",
		"--key", "pkcs11:token=fleet;object=me?module-path=/lib/p11.so", "--pin-source", "/etc/fleet/pin")
	if code != 0 {
		t.Errorf("exit %d, stderr %q", code, errs)
	}
	golden(t, "testdata/provider-mtls.json", out)
	// The profiles' extension names each cluster.
	code, out, errs = play(t, nil, "kubeconfig", "--cluster-profile-provider=eks", "--command", "execproxy", "--direct", "--auth=eks-token")
	if code != 0 || errs != "" {
		t.Errorf("exit %d, stderr %q", code, errs)
	}
	golden(t, "testdata/provider-direct.json", out)
}

func TestProviderFileRefused(t *testing.T) {
	id := []string{"--auth", "sigv4"}
	for name, tt := range map[string]struct {
		env  map[string]string
		args []string
		code int
		want []string
	}{
		"no name":               {nil, append(id, "--cluster-profile-provider="), 2, []string{"--cluster-profile-provider"}},
		"no label":              {nil, append(id, "--cluster-profile-provider=a b"), 2, []string{"--cluster-profile-provider", "label"}},
		"no identity":           {nil, []string{"--cluster-profile-provider=a"}, 1, []string{"auth"}},
		"a server":              {nil, append(id, "--cluster-profile-provider=a", "--server=https://a"), 2, []string{"--server", "ClusterProfiles"}},
		"a listener":            {nil, append(id, "--cluster-profile-provider=a", "--listen=https://127.0.0.1:1"), 2, []string{"--listen", "ClusterProfiles"}},
		"a context":             {nil, append(id, "--cluster-profile-provider=a", "--context=a"), 2, []string{"--context", "ClusterProfiles"}},
		"a client of few words": {nil, append(id, "--cluster-profile-provider=a", "--provide-cluster-info=false"), 2, []string{"--provide-cluster-info"}},
		"another's server":      {map[string]string{"EXECPROXY_SERVER": "https://a"}, append(id, "--cluster-profile-provider=a"), 1, []string{"EXECPROXY_SERVER"}},
		"direct, signed":        {nil, append(id, "--cluster-profile-provider=a", "--direct"), 2, []string{"--auth", "--direct"}},
		"direct, hardware":      {nil, []string{"--cluster-profile-provider=a", "--direct", "--key=tpm:handle=0x81000100", "--cert=/c"}, 2, []string{"--key", "--direct"}},
		"a secret":              {nil, []string{"--cluster-profile-provider=a", "--auth=headers", "--header=Authorization=Bearer hunter2"}, 1, []string{"mode 0600"}},
	} {
		t.Run(name, func(t *testing.T) {
			code, out, errs := play(t, tt.env, append([]string{"kubeconfig"}, tt.args...)...)
			if code != tt.code || out != "" || strings.Contains(errs, "hunter2") {
				t.Errorf("exit %d, stdout %q, stderr %q", code, out, errs)
			}
			for _, w := range tt.want {
				if !strings.Contains(errs, w) {
					t.Errorf("%q does not say %q", errs, w)
				}
			}
		})
	}
}

// docs/clusterprofile.md shows what the command in it prints.
func TestProviderPage(t *testing.T) {
	page, err := os.ReadFile(filepath.Join("..", "..", "..", "..", "docs", "clusterprofile.md"))
	if err != nil {
		t.Fatal(err)
	}
	_, line, _ := strings.Cut(string(page), "```\nexecproxy ")
	line, _, _ = strings.Cut(line, "\n")
	_, shown, _ := strings.Cut(string(page), "```json\n")
	shown, _, ok := strings.Cut(shown, "```\n")
	if code, out, errs := play(t, nil, append(strings.Fields(line), "--command", "execproxy")...); !ok || code != 0 || out != shown {
		t.Errorf("exit %d, %q, %s\nthe page shows\n%s", code, errs, out, shown)
	}
}
