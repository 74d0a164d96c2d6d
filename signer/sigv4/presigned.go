package sigv4

import (
	"strconv"
	"strings"
	"time"
)

// maxExpires is what AWS allows a presigned request to live.
const maxExpires = 7 * 24 * time.Hour

// presignedQuery returns the parameters of a signature that travels in the query, decoded,
// and whether there is one. A parameter that is there twice has no value.
func presignedQuery(query []pair) (params map[string]string, ok bool) {
	params = map[string]string{}
	for _, p := range query {
		if !strings.HasPrefix(p.key, "X-Amz-") {
			continue
		}
		if _, twice := params[p.key]; twice {
			params[p.key] = ""
			continue
		}
		params[p.key] = decoded(p.value)
	}
	_, ok = params["X-Amz-Signature"]
	return params, ok
}

// presigned reads the claim of a presigned request and takes from the query what was not signed.
func (v *Verifier) presigned(params map[string]string, query *[]pair) (c claim, token string, err error) {
	if params["X-Amz-Algorithm"] != algorithm {
		return c, "", refuse(ErrMalformed, "X-Amz-Algorithm: want %s, once", algorithm)
	}
	if c, err = newClaim(params["X-Amz-Credential"], params["X-Amz-SignedHeaders"], params["X-Amz-Signature"]); err != nil {
		return c, "", err
	}
	if err := c.setDate(params[fieldDate]); err != nil {
		return c, "", err
	}
	seconds, err := strconv.ParseUint(params["X-Amz-Expires"], 10, 32)
	c.presigned, c.expires = true, time.Duration(seconds)*time.Second
	if err != nil || seconds == 0 || c.expires > maxExpires {
		return c, "", refuse(ErrMalformed, "X-Amz-Expires: want seconds, 1 to %d, once", int(maxExpires.Seconds()))
	}
	token, hasToken := params[fieldToken]
	if hasToken && token == "" {
		return c, "", refuse(ErrMalformed, "%s: want it once, or not at all", fieldToken)
	}
	kept := (*query)[:0]
	for _, p := range *query {
		if p.key == "X-Amz-Signature" || v.UnsignedSessionToken && p.key == fieldToken {
			continue
		}
		kept = append(kept, p)
	}
	*query = kept
	return c, token, nil
}
