package cache

import (
	"bytes"
	"crypto/aes"
	"crypto/cipher"
	"crypto/hkdf"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"hash/crc32"
	"strconv"
	"strings"
	"time"
)

// A log is a preamble and frames. All numbers are little-endian.
//
//	preamble        magic "atollhub" | version 1 | 0 plain, 1 encrypted | 16 random bytes
//	frame           length of the rest | CRC-32C | payload
//	frame, encr.    length of the rest | nonce | AES-256-GCM of the payload | tag
//	payload         kind | wall time, ns | age, ns | len(id) | len(head) | id | head | value
//
// The checksum or the tag also covers the preamble, the offset of the frame and its length. The encryption key
// of each log is derived from the random bytes. The first frame has the scope's key; items follow, then the end
// of the snapshot with the head, and then events.
const (
	magic        = "atollhub"
	version      = 1
	preambleSize = len(magic) + 2 + 16

	lengthSize  = 4
	payloadHead = 1 + 8 + 8 + 1 + 1 // the smallest payload

	// maxFrame limits a frame, and so the memory that Open allocates for a damaged length.
	maxFrame = 32 << 20
	// maxText limits a scope's key, a head and an id, which stay in memory.
	maxText = 64 << 10
)

type kind uint8

const (
	kindKey        kind = 1 + iota // value: the scope's key
	kindItem                       // an item of the snapshot
	kindEnd                        // the end of the snapshot, with its head
	kindPut                        // an event
	kindDelete                     // an event
	kindHead                       // an event without an item
	kindUsed                       // not an event: the scope was used at this age
	kindPutPart                    // a part of the next event, which is in the same write
	kindDeletePart                 // a part of the next event, which is in the same write
)

// record is the content of a frame. Its slices share memory with the frame that it was read from.
type record struct {
	kind  kind
	wall  time.Time
	age   time.Duration // see Store.age
	id    []byte
	head  []byte
	value []byte
}

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// codec encodes and decodes the frames of one log.
type codec struct {
	preamble [preambleSize]byte
	aead     cipher.AEAD // nil: not encrypted
}

// secrets are derived from Options.Key. The zero value is for stores without encryption.
type secrets struct {
	master []byte
	names  []byte
}

func newSecrets(key []byte) (secrets, error) {
	switch len(key) {
	case 0:
		return secrets{}, nil
	case 32:
	default:
		return secrets{}, fmt.Errorf("the encryption key has %d bytes, want 32", len(key))
	}
	names, err := hkdf.Key(sha256.New, key, nil, "atoll-hub cache: names of files", 32)
	return secrets{master: bytes.Clone(key), names: names}, err
}

// base returns the common part of the file names of all generations of a scope. With encryption, nobody without
// the encryption key can find out from the names whether a scope is stored.
func (s secrets) base(key string) string {
	if s.master == nil {
		sum := sha256.Sum256([]byte(key))
		return hex.EncodeToString(sum[:])
	}
	mac := hmac.New(sha256.New, s.names)
	mac.Write([]byte(key))
	return hex.EncodeToString(mac.Sum(nil))
}

// newCodec returns the codec of a new log.
func (s secrets) newCodec() (codec, error) {
	var p [preambleSize]byte
	n := copy(p[:], magic)
	p[n] = version
	if s.master != nil {
		p[n+1] = 1
	}
	_, _ = rand.Read(p[n+2:]) // never fails
	return s.codec(p)
}

// codec returns the codec of a log with a preamble.
func (s secrets) codec(preamble [preambleSize]byte) (codec, error) {
	c := codec{preamble: preamble}
	n := len(magic)
	if string(preamble[:n]) != magic || preamble[n] != version {
		return c, errors.New("not a log of this version")
	}
	if encrypted := preamble[n+1]; encrypted > 1 || (encrypted == 1) != (s.master != nil) {
		return c, errors.New("log and store differ in encryption")
	}
	if s.master == nil {
		return c, nil
	}
	key, err := hkdf.Key(sha256.New, s.master, preamble[n+2:], "atoll-hub cache: one log", 32)
	if err != nil {
		return c, err
	}
	block, err := aes.NewCipher(key)
	if err != nil {
		return c, err
	}
	c.aead, err = cipher.NewGCMWithRandomNonce(block)
	return c, err
}

// overhead returns how many bytes of a frame are not payload.
func (c *codec) overhead() int {
	if c.aead != nil {
		return lengthSize + c.aead.Overhead()
	}
	return lengthSize + crc32.Size
}

// size returns the size of the frame of a record.
func (c *codec) size(r record) int64 {
	return int64(c.overhead() + payloadHead - 2 + uvarintSize(len(r.id)) + uvarintSize(len(r.head)) + len(r.id) + len(r.head) + len(r.value))
}

func uvarintSize(n int) int {
	return len(binary.AppendUvarint(make([]byte, 0, binary.MaxVarintLen64), uint64(n)))
}

// bound returns the bytes that the checksum of a frame covers in addition to the payload.
func (c *codec) bound(offset int64, length uint32) []byte {
	b := make([]byte, 0, preambleSize+12)
	b = append(b, c.preamble[:]...)
	b = binary.LittleEndian.AppendUint64(b, uint64(offset))
	return binary.LittleEndian.AppendUint32(b, length)
}

// append appends the frame of a record that will be at the offset of the log.
func (c *codec) append(dst []byte, offset int64, r record) []byte {
	length := uint32(c.size(r) - lengthSize)
	dst = binary.LittleEndian.AppendUint32(dst, length)
	if c.aead != nil {
		// Seal cannot encrypt in place here: the payload needs a buffer of its own.
		payload := appendPayload(make([]byte, 0, int(length)-c.aead.Overhead()), r)
		return c.aead.Seal(dst, nil, payload, c.bound(offset, length))
	}
	start := len(dst)
	dst = appendPayload(append(dst, make([]byte, crc32.Size)...), r)
	sum := crc32.Update(crc32.Checksum(c.bound(offset, length), castagnoli), castagnoli, dst[start+crc32.Size:])
	binary.LittleEndian.PutUint32(dst[start:], sum)
	return dst
}

func appendPayload(dst []byte, r record) []byte {
	dst = append(dst, byte(r.kind))
	dst = binary.LittleEndian.AppendUint64(dst, uint64(r.wall.UnixNano()))
	dst = binary.LittleEndian.AppendUint64(dst, uint64(r.age))
	dst = binary.AppendUvarint(dst, uint64(len(r.id)))
	dst = binary.AppendUvarint(dst, uint64(len(r.head)))
	dst = append(dst, r.id...)
	dst = append(dst, r.head...)
	return append(dst, r.value...)
}

// decode reads the record of a frame at the given offset of the log. It overwrites an encrypted frame.
func (c *codec) decode(frame []byte, offset int64) (record, error) {
	if len(frame) < c.overhead()+payloadHead || binary.LittleEndian.Uint32(frame) != uint32(len(frame)-lengthSize) {
		return record{}, ErrDamaged
	}
	rest := frame[lengthSize:]
	bound := c.bound(offset, uint32(len(rest)))
	var payload []byte
	if c.aead != nil {
		var err error
		if payload, err = c.aead.Open(rest[:0], nil, rest, bound); err != nil {
			return record{}, ErrDamaged
		}
	} else {
		payload = rest[crc32.Size:]
		if crc32.Update(crc32.Checksum(bound, castagnoli), castagnoli, payload) != binary.LittleEndian.Uint32(rest) {
			return record{}, ErrDamaged
		}
	}
	r := record{
		kind: kind(payload[0]),
		wall: time.Unix(0, int64(binary.LittleEndian.Uint64(payload[1:]))),
		age:  time.Duration(binary.LittleEndian.Uint64(payload[9:])),
	}
	payload = payload[17:]
	id, n := binary.Uvarint(payload)
	if n <= 0 {
		return record{}, ErrDamaged
	}
	payload = payload[n:]
	head, n := binary.Uvarint(payload)
	if n <= 0 || id > maxText || head > maxText || id+head > uint64(len(payload)-n) {
		return record{}, ErrDamaged
	}
	payload = payload[n:]
	r.id, r.head, r.value = payload[:id:id], payload[id:id+head:id+head], payload[id+head:]
	return r, nil
}

// logName returns the name of the log of a generation.
func logName(base string, generation uint64) string {
	return fmt.Sprintf("%s.%016x.log", base, generation)
}

// temporaryName returns the name of a log whose snapshot is not complete.
func temporaryName(number uint64) string { return fmt.Sprintf("%016x.tmp", number) }

// parseName returns the arguments of logName or of temporaryName. A temporary file has no base.
func parseName(name string) (base string, number uint64, ok bool) {
	rest, ok := strings.CutSuffix(name, ".tmp")
	if !ok {
		if rest, ok = strings.CutSuffix(name, ".log"); !ok {
			return "", 0, false
		}
		if base, rest, ok = strings.Cut(rest, "."); !ok || len(base) != 2*sha256.Size {
			return "", 0, false
		}
	}
	number, err := strconv.ParseUint(rest, 16, 64)
	return base, number, err == nil && len(rest) == 16
}
