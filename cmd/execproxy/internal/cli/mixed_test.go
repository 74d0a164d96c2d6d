package cli

import (
	"encoding/json"
	"strings"
	"testing"
)

// What a program put together from two clusters' arguments never becomes a request:
// each of these ends before a proxy is started or found.
func TestMixedArguments(t *testing.T) {
	type object = map[string]any
	info := func(server, lock string, config any) map[string]string {
		spec := object{"interactive": false}
		if server != "" {
			spec["cluster"] = object{"server": server, "config": config}
		}
		if lock != "" {
			spec["lockFilePath"] = lock
		}
		data, err := json.Marshal(object{"apiVersion": "client.authentication.k8s.io/v1", "kind": "ExecCredential", "spec": spec})
		if err != nil {
			t.Fatal(err)
		}
		return map[string]string{"KUBERNETES_EXEC_INFO": string(data)}
	}
	with := func(env map[string]string, kv ...string) map[string]string {
		for i := 0; i < len(kv); i += 2 {
			env[kv[i]] = kv[i+1]
		}
		return env
	}
	upstream := func(server string) object { return object{"upstream": object{"server": server}} }
	const lock = "/does/not/exist.lock"
	mtls := []string{"--auth", "mtls", "--key", "/does/not/exist.key"}
	args := func(more ...string) []string { return append([]string{"exec"}, append(mtls[:4:4], more...)...) }
	for _, tt := range []struct {
		name string
		env  map[string]string
		args []string
		want []string
	}{
		{"two servers", info("https://a", lock, nil), args("--server", "https://a", "--server", "https://b"), []string{"--server", "more than once"}},
		{"two profiles", info("https://a", lock, nil), []string{"exec", "--auth=sigv4", "--aws-profile=a", "--aws-profile=b"}, []string{"--aws-profile", "more than once"}},
		{"two keys", info("https://a", lock, nil), args("--key", "/other"), []string{"--key", "more than once"}},
		{"two switches", info("https://a", lock, nil), []string{"exec", "--auth=sigv4", "--sign-target", "--sign-target=false"}, []string{"--sign-target", "more than once"}},
		{"two tokens", info("https://a", lock, nil), []string{"exec", "--header=Authorization=@/a", "--header=authorization=@/b"}, []string{"--header", "Authorization"}},
		{"two authorities", info("https://a", lock, nil), args("--certificate-authority=/a", "--certificate-authority-data=YQ=="), []string{"--certificate-authority", "--certificate-authority-data"}},
		{"a bare plugin", info("https://a", lock, nil), []string{"--auth=sigv4", "--aws-region=a", "--aws-region=b"}, []string{"--aws-region", "more than once"}},

		{"flag and client", info("https://a", lock, nil), args("--server", "https://b"), []string{"https://a", "--server", "https://b", "two clusters"}},
		{"environment and client", with(info("https://a", lock, nil), "EXECPROXY_SERVER", "https://b"), args(), []string{"https://a", "EXECPROXY_SERVER", "https://b"}},
		{"extension and client", info("https://a", lock, upstream("https://b")), args(), []string{"https://a", "upstream.server", "https://b"}},
		{"flag and extension", info("https://a", lock, upstream("https://b")), args("--server", "https://a"), []string{"--server", "https://a", "upstream.server", "https://b"}},
		{"flag and environment", with(info("https://a", lock, nil), "EXECPROXY_SERVER", "https://b"), args("--server=https://a"), []string{"--server", "EXECPROXY_SERVER"}},
		{"flag and extension, loopback", info("https://127.0.0.1:20001", "", upstream("https://b")), args("--server", "https://a"), []string{"--server", "https://a", "https://b"}},
		{"another API server on this machine", info("https://127.0.0.1:20001", lock, nil), args("--server", "https://a"), []string{"https://127.0.0.1:20001", "https://a"}},
		{"another listener", info("https://127.0.0.1:20001", "", upstream("https://b")), args("--listen", "https://127.0.0.1:20002"), []string{"https://127.0.0.1:20001", "--listen", "20002"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			code, out, errs := play(t, tt.env, tt.args...)
			if code == 0 || out != "" || strings.Count(errs, "\n") != 1 {
				t.Errorf("exit %d, stdout %q, stderr %q", code, out, errs)
			}
			for _, w := range append(tt.want, "mixed") {
				if !strings.Contains(errs, w) {
					t.Errorf("%q does not say %q", errs, w)
				}
			}
		})
	}
	if code, _, errs := play(t, info("https://a", "", nil), args("--provider=fleet")...); code != 1 || !strings.Contains(errs, "clientgo") || !strings.Contains(errs, "--direct") {
		t.Errorf("a controller without proxyConfig: exit %d, %q", code, errs)
	}
	// Said twice and the same, or spelled otherwise, is no contradiction: these get as
	// far as their lock.
	for name, tt := range map[string]struct {
		env  map[string]string
		args []string
	}{
		"repeated": {info("https://a", lock, upstream("https://A:443/")), args("--server", "https://a", "--server", "https://a")},
		"groups":   {info("https://a", lock, nil), []string{"exec", "--header=X-Remote-Group=a", "--header=X-Remote-Group=b"}},
	} {
		if code, _, errs := play(t, tt.env, tt.args...); code != 1 || !strings.Contains(errs, lock) {
			t.Errorf("%s: exit %d, %q", name, code, errs)
		}
	}
	// Other commands take the last value, as kubectl does.
	if _, _, errs := play(t, nil, "serve", "--server", "https://a", "--server", "https://b", "--auth", "mtls", "--key", "/does/not/exist.key"); strings.Contains(errs, "more than once") {
		t.Error(errs)
	}
}
