//go:build linux

package imagecredentials

import (
	"bytes"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"sync"
	"testing"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/kubernetes/pkg/credentialprovider/plugin"
)

// roleVariable makes the test binary play kubelet: the plugin manager keeps its
// providers for as long as its process lives.
const roleVariable = "EXECPROXY_TEST_ROLE"

// A job is what kubelet is to do.
type job struct {
	Config   string // CredentialProviderConfig
	BinDir   string
	Key      []byte                       // of the service account issuer, PKCS #8
	Accounts map[string]map[string]string // namespace/name, annotations
	Lookups  []lookup                     // one after the other
	Together bool                         // all at once
}

// A lookup is one pod's image.
type lookup struct{ Image, Namespace, Account string }

// A found is what kubelet would pull with.
type found struct {
	Auths []auth
	Took  time.Duration
}

type auth struct{ Username, Password string }

// A kubeletResult is what became of a job.
type kubeletResult struct {
	Found  []found
	Stderr string `json:"-"`
}

func playKubelet() error {
	var j job
	if err := json.NewDecoder(os.Stdin).Decode(&j); err != nil {
		return err
	}
	parsed, err := x509.ParseECPrivateKey(j.Key)
	if err != nil {
		return err
	}
	var serial sync.Mutex
	tokens := 0
	token := func(namespace, name string, tr *authenticationv1.TokenRequest) (*authenticationv1.TokenRequest, error) {
		serial.Lock()
		tokens++
		id := fmt.Sprint(tokens)
		serial.Unlock()
		t, err := makeToken(parsed, claims{
			Issuer: issuer, Audience: tr.Spec.Audiences, Subject: "system:serviceaccount:" + namespace + ":" + name,
			Expires: time.Now().Add(time.Hour).Unix(), ID: id,
		})
		tr.Status.Token = t
		return tr, err
	}
	account := func(namespace, name string) (*corev1.ServiceAccount, error) {
		annotations, ok := j.Accounts[namespace+"/"+name]
		if !ok {
			return nil, errors.New("no such service account")
		}
		return &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{
			Namespace: namespace, Name: name, UID: types.UID("uid-of-" + name), Annotations: annotations,
		}}, nil
	}
	if err := plugin.RegisterCredentialProviderPlugins(j.Config, j.BinDir, token, account); err != nil {
		return err
	}
	result := kubeletResult{Found: make([]found, len(j.Lookups))}
	look := func(i int) {
		l := j.Lookups[i]
		begin := time.Now()
		keyring := plugin.NewExternalCredentialProviderDockerKeyring(l.Namespace, fmt.Sprintf("pod-%d", i), fmt.Sprintf("uid-%d", i), l.Account)
		all, _ := keyring.Lookup(l.Image)
		result.Found[i].Took = time.Since(begin)
		for _, a := range all {
			result.Found[i].Auths = append(result.Found[i].Auths, auth{a.Username, a.Password})
		}
	}
	var all sync.WaitGroup
	for i := range j.Lookups {
		if j.Together {
			all.Go(func() { look(i) })
		} else {
			look(i)
		}
	}
	all.Wait()
	return json.NewEncoder(os.Stdout).Encode(result)
}

// kubelet runs a job in a kubelet of its own, with the environment of a node.
func (n *node) kubelet(j job) kubeletResult {
	n.t.Helper()
	der, err := x509.MarshalECPrivateKey(n.cloud.saKey)
	must(n.t, err)
	j.Key = der
	if j.BinDir == "" {
		j.BinDir = n.path("bin")
	}
	in, err := json.Marshal(j)
	must(n.t, err)
	exe, err := os.Executable()
	must(n.t, err)
	cmd := exec.Command(exe)
	cmd.Env = append(n.environ(), roleVariable+"=kubelet")
	var stdout, stderr bytes.Buffer
	cmd.Stdin, cmd.Stdout, cmd.Stderr = bytes.NewReader(in), &stdout, &stderr
	if err := cmd.Run(); err != nil {
		n.t.Fatalf("kubelet: %v\n%s", err, stderr.String())
	}
	r := kubeletResult{Stderr: stderr.String()}
	if err := json.Unmarshal(stdout.Bytes(), &r); err != nil {
		n.t.Fatalf("kubelet: %v in %s", err, stdout.String())
	}
	n.seen = append(n.seen, r.Stderr)
	return r
}

// A provider is one entry of kubelet's configuration.
type provider struct {
	Name    string // of the file
	Version string // "": v1
	Match   []string
	Args    []string
	Env     map[string]string
	Tokens  bool
}

// config writes a CredentialProviderConfig of one provider.
func (n *node) config(p provider) string {
	n.t.Helper()
	if p.Version == "" {
		p.Version = "v1"
	}
	type variable struct {
		Name  string `json:"name"`
		Value string `json:"value"`
	}
	entry := map[string]any{
		"name": p.Name, "apiVersion": "credentialprovider.kubelet.k8s.io/" + p.Version,
		"matchImages": p.Match, "defaultCacheDuration": "0s", "args": p.Args,
	}
	var env []variable
	for k, v := range p.Env {
		env = append(env, variable{k, v})
	}
	entry["env"] = env
	if p.Tokens {
		entry["tokenAttributes"] = map[string]any{
			"serviceAccountTokenAudience": audience, "cacheType": "ServiceAccount", "requireServiceAccount": false,
			"optionalServiceAccountAnnotationKeys": []string{roleAnnotation},
		}
	}
	data, err := json.Marshal(map[string]any{
		"apiVersion": "kubelet.config.k8s.io/v1", "kind": "CredentialProviderConfig", "providers": []any{entry},
	})
	must(n.t, err)
	return n.file("provider.yaml", string(data))
}

const roleAnnotation = "eks.amazonaws.com/ecr-role-arn"

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
