package signer_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/execproxy/execproxy/signer"
)

// TestFields: values stay what they were while the memory under them grows, until Reset.
func TestFields(t *testing.T) {
	var f signer.Fields
	var want []signer.Field
	for round := range 3 {
		f.Reset()
		want = want[:0]
		for i := range 200 {
			name, value := fmt.Sprintf("x-%d", i), strings.Repeat(string(rune('a'+i%26)), i*round)
			given := []byte(value)
			if i%3 == 0 {
				f.Add(name, value)
			} else {
				f.AddBytes(name, given)
			}
			for j := range given { // it was copied
				given[j] = '!'
			}
			want = append(want, signer.Field{Name: name, Value: value})
			if f.Transient(i) != (i%3 != 0) {
				t.Errorf("field %d: transient %t", i, f.Transient(i))
			}
		}
		if !slices.Equal(f.List(), want) {
			t.Fatalf("round %d: other fields than were added", round)
		}
	}
	f.Reset()
	if len(f.List()) != 0 {
		t.Errorf("%d fields after Reset", len(f.List()))
	}
	// Memory that has the usual size is used again.
	value := []byte("signature")
	if n := testing.AllocsPerRun(100, func() {
		f.Reset()
		f.Add("x-a", "b")
		f.AddBytes("authorization", value)
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

func TestFieldsPrinted(t *testing.T) {
	var f signer.Fields
	f.Add("x-amz-security-token", "canary")
	f.AddBytes("authorization", []byte("canary"))
	for _, verb := range []string{"%v", "%+v", "%#v", "%s", "%d", "%x"} {
		for _, v := range []any{&f, f, struct{ F signer.Fields }{f}} {
			if got := fmt.Sprintf(verb, v); !strings.Contains(got, "fields [x-amz-security-token authorization]") || strings.Contains(got, "canary") {
				t.Errorf("%s of %T prints %s", verb, v, got)
			}
		}
	}
}
