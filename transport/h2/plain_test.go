package h2

import (
	"bytes"
	"fmt"
	"reflect"
	"strings"
	"testing"

	"golang.org/x/net/http2/hpack"
)

// What is written as it is reads as what it was, and stays out of the table.
func TestWritePlain(t *testing.T) {
	for _, n := range []int{0, 1, 126, 127, 128, 254, 255, 256, 16510, 16511, 16512, 1 << 20} {
		for _, m := range []int{1, 126, 127, 300} {
			want := Field{Name: strings.Repeat("n", m), Value: strings.Repeat("v", n), Sensitive: true}
			var b bytes.Buffer
			writePlain(&b, &want)
			got, err := hpack.NewDecoder(4096, nil).DecodeFull(b.Bytes())
			if err != nil || !reflect.DeepEqual(got, []Field{want}) {
				t.Errorf("%d, %d: %v", m, n, err)
			}
		}
	}
}

// FuzzWritePlain holds it against the decoder, among fields that are indexed.
func FuzzWritePlain(f *testing.F) {
	f.Add("authorization", "AWS4-HMAC-SHA256 x", "a", "b")
	f.Fuzz(func(t *testing.T, name, value, other, indexed string) {
		var b bytes.Buffer
		enc := hpack.NewEncoder(&b)
		want := []Field{{Name: other, Value: indexed}, {Name: name, Value: value, Sensitive: true}, {Name: other, Value: indexed}}
		_ = enc.WriteField(want[0])
		writePlain(&b, &want[1])
		_ = enc.WriteField(want[2])
		got, err := hpack.NewDecoder(4096, nil).DecodeFull(b.Bytes())
		if err != nil || fmt.Sprintf("%q", got) != fmt.Sprintf("%q", want) {
			t.Fatalf("%q became %q: %v", want, got, err)
		}
	})
}

func BenchmarkHeader(b *testing.B) {
	signature := Field{Name: "authorization", Value: "AWS4-HMAC-SHA256 " + strings.Repeat("0123456789abcdef", 14), Sensitive: true}
	b.Run("plain", func(b *testing.B) {
		var to bytes.Buffer
		for b.Loop() {
			to.Reset()
			writePlain(&to, &signature)
		}
	})
	b.Run("hpack", func(b *testing.B) {
		var to bytes.Buffer
		enc := hpack.NewEncoder(&to)
		for b.Loop() {
			to.Reset()
			_ = enc.WriteField(signature)
		}
	})
}
