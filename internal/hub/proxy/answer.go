package proxy

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/atoll-k8s/atoll/internal/hub/cache"
	"github.com/atoll-k8s/atoll/internal/hub/limits"
)

// gzipped is the encoding of long responses of an API server. Gzip answers are forwarded unchanged to clients
// that accept gzip, even if the hub reads their content: compressing a response, or encrypting it uncompressed,
// takes longer than all other work for it.
const gzipped = "gzip"

// acceptsGzip reports whether a client accepts responses with gzip encoding.
func acceptsGzip(h http.Header) bool {
	for _, line := range h.Values("Accept-Encoding") {
		for name := range strings.SplitSeq(line, ",") {
			if strings.EqualFold(strings.TrimSpace(name), gzipped) {
				return true
			}
		}
	}
	return false
}

// hopHeaders are headers of one connection: RFC 9110, section 7.6.1.
var hopHeaders = []string{"Connection", "Keep-Alive", "Proxy-Authenticate", "Proxy-Authorization", "Te", "Trailer", "Transfer-Encoding", "Upgrade"}

// answerWith sends the status code and the headers of the cloud's response to a client.
func answerWith(w http.ResponseWriter, response *http.Response) {
	for _, name := range hopHeaders { // the hub may set its own
		response.Header.Del(name)
	}
	for name, values := range response.Header {
		w.Header()[name] = values
	}
	w.WriteHeader(response.StatusCode)
}

// passOn forwards the cloud's response to the client. It returns the body if it was received completely and is
// not too large to be cached.
func passOn(w http.ResponseWriter, response *http.Response) (body []byte, whole bool) {
	answer := &buffer{}
	passInto(w, response, answer)
	if answer.tooLarge {
		return nil, false
	}
	return answer.body, true
}

// passInto forwards the cloud's response to the client, and collects its body in answer.
func passInto(w http.ResponseWriter, response *http.Response, answer *buffer) {
	answerWith(w, response)
	isWhole := false
	defer func() {
		if !isWhole {
			answer.release()
		}
	}()
	answer.expect(response.ContentLength)
	for {
		part, err := answer.read(response.Body)
		if len(part) > 0 {
			if _, err := w.Write(part); err != nil {
				panic(http.ErrAbortHandler) // the client has disconnected
			}
		}
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			panic(http.ErrAbortHandler) // the client must see that the response is incomplete
		}
	}
	isWhole = true
}

// received is a response that was read completely before it is forwarded.
type received struct {
	*http.Response

	// sent is the body as received, and body the body without its encoding.
	sent, body []byte
	// decoded has the body if it differs from sent.
	decoded buffer
}

// errTooLarge means that a response is too large to be processed.
var errTooLarge = fmt.Errorf("the response has more than %d bytes", maxAnswer)

// receive reads a response before it is forwarded, and decompresses it while reading. If it is too large, sent
// has the bytes that were read.
func receive(response *http.Response) (*received, error) {
	r := &received{Response: response}
	sent := &buffer{}
	sent.expect(response.ContentLength)
	if response.Header.Get("Content-Encoding") != gzipped {
		err := sent.readAll(response.Body)
		r.sent, r.body = sent.body, sent.body
		return r, err
	}
	err := r.decoded.gunzip(&copied{response.Body, sent}, 0)
	r.sent, r.body = sent.body, r.decoded.body
	if err == nil && sent.tooLarge {
		err = errTooLarge
	}
	return r, err
}

// release makes the memory of the body reusable. The body must not be used afterwards.
func (r *received) release() {
	r.decoded.release()
	r.body = nil
}

// copied is a body that also copies everything read from it to into.
type copied struct {
	from io.Reader
	into *buffer
}

// Read implements io.Reader.
func (c *copied) Read(p []byte) (int, error) {
	part, err := c.into.readUpTo(c.from, len(p))
	if err == nil && c.into.tooLarge {
		err = errTooLarge
	}
	return copy(p, part), err
}

// pass sends a client the response as received.
func (r *received) pass(w http.ResponseWriter) { r.passAs(w, r.sent) }

// passChanged sends a client the response with another body.
func (r *received) passChanged(w http.ResponseWriter, body []byte) {
	r.Header.Del("Content-Encoding")
	r.passAs(w, body)
}

func (r *received) passAs(w http.ResponseWriter, body []byte) {
	r.Header.Set("Content-Length", strconv.Itoa(len(body)))
	answerWith(w, r.Response)
	_, _ = w.Write(body)
}

// buffer collects up to maxAnswer bytes, and not more than its limit allows. A nil limit means unlimited. Its
// memory doubles when it is full: with the smaller steps of append and io.ReadAll, the copies of a long list
// take as long as all other work for it.
type buffer struct {
	limit    *limits.Bytes
	body     []byte
	taken    int64 // bytes taken of the limit
	tooLarge bool  // the body is incomplete
	pooled   bool  // the memory of the body is reused: it must not be used after release
}

const (
	// leastSpace is the least memory for a read, and skipSpace the memory for reads that are not collected, in
	// bytes.
	leastSpace, skipSpace = 4 << 10, 32 << 10
	// minPooled and maxPooled limit the size of memory that is reused, in bytes.
	minPooled, maxPooled = 256 << 10, 8 << 20
)

// bodies has values of type *[]byte.
var bodies sync.Pool

// grow makes space for n more bytes.
func (k *buffer) grow(n int) {
	if n <= cap(k.body)-len(k.body) {
		return
	}
	if k.pooled && len(k.body) < minPooled {
		if free, _ := bodies.Get().(*[]byte); free != nil && cap(*free) >= len(k.body)+n {
			k.body = append((*free)[:0], k.body...)
			return
		}
		n = max(n, minPooled)
	}
	k.body = slices.Grow(k.body, n)
}

// expect allocates memory for a number of bytes. A negative number means unknown.
func (k *buffer) expect(size int64) {
	if size > 0 && size <= maxAnswer {
		k.grow(int(size) + 1) // one more byte to detect the end
	}
}

// read reads some bytes and collects them. The result is valid until the next call. When the body has become
// too large, further bytes are not collected.
func (k *buffer) read(from io.Reader) ([]byte, error) { return k.readUpTo(from, maxAnswer) }

// readUpTo is like read, for at most most bytes.
func (k *buffer) readUpTo(from io.Reader, most int) ([]byte, error) {
	if k.tooLarge {
		if cap(k.body) != skipSpace {
			k.body = make([]byte, skipSpace)
		}
		n, err := from.Read(k.body[:min(most, skipSpace)])
		return k.body[:n], err
	}
	if len(k.body) == cap(k.body) {
		k.grow(max(leastSpace, len(k.body)))
	}
	at := len(k.body)
	n, err := from.Read(k.body[at : at+min(most, cap(k.body)-at)])
	k.body = k.body[:at+n]
	if len(k.body) > maxAnswer || !k.take(int64(n)) {
		k.giveBack()
		k.tooLarge = true
	}
	return k.body[at:], err
}

// readAll reads to the end. If the body is too large, it returns errTooLarge, and body has the bytes that were
// read.
func (k *buffer) readAll(from io.Reader) error {
	for {
		_, err := k.read(from)
		switch {
		case errors.Is(err, io.EOF):
			if k.tooLarge {
				return errTooLarge
			}
			return nil
		case err != nil:
			return err
		case k.tooLarge:
			return errTooLarge
		}
	}
}

// take takes n bytes of the limit.
func (k *buffer) take(n int64) bool {
	if !k.limit.Take(n) {
		return false
	}
	k.taken += n
	return true
}

// giveBack gives back what was taken of the limit.
func (k *buffer) giveBack() {
	k.limit.Give(k.taken)
	k.taken = 0
}

// release gives back what was taken of the limit. The body must not be used afterwards.
func (k *buffer) release() {
	k.giveBack()
	if k.pooled && cap(k.body) >= minPooled && cap(k.body) <= maxPooled {
		free := k.body[:0]
		bodies.Put(&free)
	}
	k.body = nil
}

// decode removes the encoding of the body.
func (k *buffer) decode(encoding string) error {
	if k.tooLarge {
		return cache.ErrTooLarge
	}
	if encoding != gzipped {
		return nil
	}
	plain := &buffer{limit: k.limit}
	expected := int64(0)
	if n := len(k.body); n > 4 { // the last four bytes are the uncompressed length
		expected = min(int64(binary.LittleEndian.Uint32(k.body[n-4:])), maxExpected*int64(n))
	}
	if err := plain.gunzip(bytes.NewReader(k.body), expected); err != nil {
		plain.release()
		return err
	}
	k.release()
	*k = *plain
	return nil
}

// decompressors has values of type *decompressor, which need 40 KB each.
var decompressors sync.Pool

// decompressor is a gzip reader and its input buffer.
type decompressor struct {
	gzip   gzip.Reader
	buffer *bufio.Reader
}

// maxExpected limits the memory that is allocated according to the uncompressed length in a compressed body,
// which may be wrong. It is a multiple of the compressed length.
const maxExpected = 128

// gunzip collects the decompressed body. The memory is reused after release. expected is the decompressed
// length, or 0.
func (k *buffer) gunzip(body io.Reader, expected int64) error {
	d, _ := decompressors.Get().(*decompressor)
	if d == nil {
		d = &decompressor{buffer: bufio.NewReaderSize(nil, skipSpace)}
	}
	d.buffer.Reset(body)
	defer func() {
		d.buffer.Reset(nil) // the pool must not hold a reference to the body
		decompressors.Put(d)
	}()
	k.pooled = true
	k.expect(expected)
	err := d.gzip.Reset(d.buffer)
	if err == nil {
		err = k.readAll(&d.gzip)
	}
	if err != nil {
		return fmt.Errorf("decompressing a response: %w", err)
	}
	return nil
}
