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

// gzipped is the encoding in which an API server sends long answers to who accepts it. They pass as they
// come, also if the hub looks into them: to compress an answer, or to encrypt it uncompressed, takes
// longer than all else that is done with it.
const gzipped = "gzip"

// acceptsGzip reports whether a client accepts answers that are compressed with gzip.
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

// hopHeaders belong to one connection: RFC 9110, section 7.6.1.
var hopHeaders = []string{"Connection", "Keep-Alive", "Proxy-Authenticate", "Proxy-Authorization", "Te", "Trailer", "Transfer-Encoding", "Upgrade"}

// answerWith begins the answer to a client like that of the cloud.
func answerWith(w http.ResponseWriter, response *http.Response) {
	for _, name := range hopHeaders { // the hub may have its own
		response.Header.Del(name)
	}
	for name, values := range response.Header {
		w.Header()[name] = values
	}
	w.WriteHeader(response.StatusCode)
}

// passOn gives the client the cloud's answer, and returns its body if all of it arrived and it is
// not too large to be kept.
func passOn(w http.ResponseWriter, response *http.Response) (body []byte, whole bool) {
	answer := &buffer{}
	passInto(w, response, answer)
	if answer.tooLarge {
		return nil, false
	}
	return answer.body, true
}

// passInto gives the client the cloud's answer, and collects its body as it comes.
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
				panic(http.ErrAbortHandler) // the client has gone
			}
		}
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			panic(http.ErrAbortHandler) // the client must see that the answer is not whole
		}
	}
	isWhole = true
}

// received is an answer that was read before it is passed on.
type received struct {
	*http.Response

	// sent is the body as it came, and body is it without its encoding.
	sent, body []byte
	// decoded has the body if that is not what was sent.
	decoded buffer
}

// errTooLarge means that an answer is too large to be looked into.
var errTooLarge = fmt.Errorf("the answer has more than %d bytes", maxAnswer)

// receive reads an answer that is not passed on as it arrives. It is decompressed while it arrives. Of one
// that is too large, sent has what has been read.
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

// release lets the memory of the body be used again. Nobody uses the body any more.
func (r *received) release() {
	r.decoded.release()
	r.body = nil
}

// copied is a body of which into has what is read.
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

// pass gives a client the answer as it came.
func (r *received) pass(w http.ResponseWriter) { r.passAs(w, r.sent) }

// passChanged gives a client the answer with another body.
func (r *received) passChanged(w http.ResponseWriter, body []byte) {
	r.Header.Del("Content-Encoding")
	r.passAs(w, body)
}

func (r *received) passAs(w http.ResponseWriter, body []byte) {
	r.Header.Set("Content-Length", strconv.Itoa(len(body)))
	answerWith(w, r.Response)
	_, _ = w.Write(body)
}

// buffer collects up to maxAnswer bytes, and no more than a limit allows. A nil limit means unlimited. Its memory
// doubles when it is full: with the smaller steps of append and io.ReadAll, the copies of a long list take
// as long as all else that is done with it.
type buffer struct {
	limit    *limits.Bytes
	body     []byte
	taken    int64 // of the limit
	tooLarge bool  // the body is not all of it
	pooled   bool  // the memory of the body is used again: nobody may have it after release
}

const (
	// leastSpace is the least memory that is read into, and skipSpace that for what is not collected, in bytes.
	leastSpace, skipSpace = 4 << 10, 32 << 10
	// minPooled and maxPooled are the memory that is used again, in bytes.
	minPooled, maxPooled = 256 << 10, 8 << 20
)

// bodies are of the type *[]byte.
var bodies sync.Pool

// grow makes place for n more bytes.
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

// expect prepares memory for a number of bytes. A negative number is not known.
func (k *buffer) expect(size int64) {
	if size > 0 && size <= maxAnswer {
		k.grow(int(size) + 1) // with space in which the end is seen
	}
}

// read reads something, collects it, and returns it until the next call. What is read after it was too
// much is not collected.
func (k *buffer) read(from io.Reader) ([]byte, error) { return k.readUpTo(from, maxAnswer) }

// readUpTo is read of at most n bytes.
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

// readAll reads all. If that is too much, the error is errTooLarge and the body has what was read.
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

// release gives back what was taken. The body is not used any more.
func (k *buffer) release() {
	k.giveBack()
	if k.pooled && cap(k.body) >= minPooled && cap(k.body) <= maxPooled {
		free := k.body[:0]
		bodies.Put(&free)
	}
	k.body = nil
}

// decode takes the encoding of an answer away from its body.
func (k *buffer) decode(encoding string) error {
	if k.tooLarge {
		return cache.ErrTooLarge
	}
	if encoding != gzipped {
		return nil
	}
	plain := &buffer{limit: k.limit}
	expected := int64(0)
	if n := len(k.body); n > 4 { // the last four bytes are the length
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

// decompressors are of the type *decompressor: one has 40 KB.
var decompressors sync.Pool

// decompressor is a reader of gzip, and what it reads by.
type decompressor struct {
	gzip   gzip.Reader
	buffer *bufio.Reader
}

// maxExpected bounds the memory that is prepared because a compressed body says how long it is without
// compression: what it says may be wrong. It is a multiple of the compressed length.
const maxExpected = 128

// gunzip collects what a compressed body has, and uses the memory again after release. expected is its
// length, or 0.
func (k *buffer) gunzip(body io.Reader, expected int64) error {
	d, _ := decompressors.Get().(*decompressor)
	if d == nil {
		d = &decompressor{buffer: bufio.NewReaderSize(nil, skipSpace)}
	}
	d.buffer.Reset(body)
	defer func() {
		d.buffer.Reset(nil) // the pool does not keep the body
		decompressors.Put(d)
	}()
	k.pooled = true
	k.expect(expected)
	err := d.gzip.Reset(d.buffer)
	if err == nil {
		err = k.readAll(&d.gzip)
	}
	if err != nil {
		return fmt.Errorf("decompressing an answer: %w", err)
	}
	return nil
}
