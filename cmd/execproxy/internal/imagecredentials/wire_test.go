package imagecredentials

import (
	"bytes"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

var update = flag.Bool("update", false, "write the golden files anew")

// TestGolden: every document that kubelet reads, in each version. It decodes
// strictly, so that one field more would be no credentials.
func TestGolden(t *testing.T) {
	answers := map[string]Answer{
		"registry": {CacheKeyType: CacheRegistry, CacheDuration: 15 * time.Minute, Auth: map[string]AuthConfig{"registry.example.com:5000": {"user", `pass"word<&>`}}},
		"image":    {CacheKeyType: CacheImage, CacheDuration: 90*time.Second + 12*time.Millisecond, Auth: map[string]AuthConfig{"registry.example.com/team/": {"", ""}}},
		"nothing":  *nothing(),
		"not-kept": {CacheKeyType: CacheRegistry, Auth: map[string]AuthConfig{"a.example": {"u", "p"}}},
	}
	for _, version := range []string{V1, V1Beta1, V1Alpha1} {
		for name, a := range answers {
			got, err := a.Encode(version)
			if err != nil {
				t.Fatal(err)
			}
			golden := filepath.Join("testdata", filepath.Base(version)+"-"+name+".json")
			if *update {
				if err := os.WriteFile(golden, got, 0o644); err != nil {
					t.Fatal(err)
				}
			}
			want, err := os.ReadFile(golden)
			if err != nil {
				t.Fatal(err)
			}
			if !bytes.Equal(got, want) {
				t.Errorf("%s: got %s, want %s", golden, got, want)
			}
		}
	}
}

func TestDecodeRequest(t *testing.T) {
	doc := func(version, rest string) string {
		return `{"apiVersion":"credentialprovider.kubelet.k8s.io/` + version + `","kind":"CredentialProviderRequest"` + rest + `}`
	}
	for name, c := range map[string]struct{ in, want string }{
		"v1":               {doc("v1", `,"image":"a.example/b","serviceAccountToken":"hunter-2718","serviceAccountAnnotations":{"k":"v"}`), ""},
		"v1beta1":          {doc("v1beta1", `,"image":"a.example/b"`), ""},
		"v1alpha1":         {doc("v1alpha1", `,"image":"a.example/b"`), ""},
		"a later field":    {doc("v1", `,"image":"a.example/b","podName":"p"`), ""},
		"v2":               {doc("v2", `,"image":"a.example/b"`), "apiVersion credentialprovider.kubelet.k8s.io/v2 is not supported; set apiVersion"},
		"another group":    {`{"apiVersion":"hunter-2718","kind":"CredentialProviderRequest","image":"a"}`, "apiVersion is none of credentialprovider.kubelet.k8s.io"},
		"another kind":     {`{"apiVersion":"` + V1 + `","kind":"hunter-2718","image":"a"}`, "kind is not CredentialProviderRequest"},
		"no image":         {doc("v1", ""), "it names no image"},
		"token in v1beta1": {doc("v1beta1", `,"image":"a","serviceAccountToken":"hunter-2718"`), "belong to credentialprovider.kubelet.k8s.io/v1 alone"},
		"empty":            {" \n", "it is empty; kubelet runs this"},
		"no JSON":          {"hunter-2718", "it is not one JSON document"},
		"two":              {doc("v1", `,"image":"a"`) + doc("v1", `,"image":"a"`), "it is not one JSON document"},
		"mistyped":         {doc("v1", `,"image":["hunter-2718"]`), "its field image has the wrong type"},
		"too large":        {doc("v1", `,"image":"`+strings.Repeat("hunter-2718", 1<<17)+`"`), "it has more than 1048576 bytes"},
	} {
		t.Run(name, func(t *testing.T) {
			r, err := DecodeRequest(strings.NewReader(c.in))
			switch {
			case c.want == "" && (err != nil || r.Image != "a.example/b"):
				t.Errorf("got %+v, %v", r, err)
			case c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want) || strings.Contains(err.Error(), "hunter-2718")):
				t.Errorf("got %v, want %s", err, c.want)
			}
		})
	}
}

// TestSecretsAreNotPrinted, by whatever prints them.
func TestSecretsAreNotPrinted(t *testing.T) {
	a := AuthConfig{"user", "hunter-2718"}
	for _, s := range []string{fmt.Sprint(a), fmt.Sprintf("%v %+v %#v", a, map[string]AuthConfig{"x": a}, a)} {
		if strings.Contains(s, "hunter") {
			t.Errorf("printed %s", s)
		}
	}
}

func FuzzDecodeRequest(f *testing.F) {
	f.Add([]byte(`{"apiVersion":"credentialprovider.kubelet.k8s.io/v1","kind":"CredentialProviderRequest","image":"a.example/b","serviceAccountToken":"t","serviceAccountAnnotations":{"k":"v"}}`))
	f.Add([]byte(`{}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		r, err := DecodeRequest(bytes.NewReader(data))
		if err != nil {
			return
		}
		if r.Image == "" || checkVersion(r.APIVersion) != nil || !json.Valid(data) {
			t.Errorf("accepted %q as %+v", data, r)
		}
	})
}
