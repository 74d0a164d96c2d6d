package token_test

import (
	"context"
	"fmt"
	"time"

	"github.com/execproxy/execproxy/signer"
	"github.com/execproxy/execproxy/signer/token"
)

func ExampleNewSigner() {
	cache := token.New(token.SourceFunc(func(context.Context) (*token.Credential, error) {
		return &token.Credential{Token: "from-somewhere", Expires: time.Now().Add(time.Hour)}, nil
	}), token.Options{})
	fields, err := token.NewSigner(cache).SignRequest(context.Background(), &signer.Request{})
	fmt.Println(fields.Get("Authorization"), err)
	// Output: Bearer from-somewhere <nil>
}
