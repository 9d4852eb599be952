package relay

import (
	"errors"
	"io"
	"net"
	"os"
	"testing"
	"time"
)

// startEcho returns the address of a server that sends back what it gets.
func startEcho(t *testing.T) string {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = listener.Close() })
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			go func() { _, _ = io.Copy(conn, conn); _ = conn.Close() }()
		}
	}()
	return listener.Addr().String()
}

func dial(t *testing.T, address string) net.Conn {
	t.Helper()
	conn, err := net.Dial("tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	return conn
}

// echo sends a byte and reads it back, within a time.
func echo(t *testing.T, conn net.Conn, within time.Duration) error {
	t.Helper()
	if err := conn.SetDeadline(time.Now().Add(within)); err != nil {
		t.Fatal(err)
	}
	b := []byte{42}
	if _, err := conn.Write(b); err != nil {
		return err
	}
	_, err := io.ReadFull(conn, b)
	return err
}

func TestRelay(t *testing.T) {
	const long, short = time.Minute, 100 * time.Millisecond
	r, err := New(t.Context(), startEcho(t))
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	conn := dial(t, r.Address())
	if err := echo(t, conn, long); err != nil {
		t.Fatalf("whole, the link does not carry: %v", err)
	}

	r.Set(Silent)
	if err := echo(t, conn, short); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("silent, the link ends with %v, want no answer", err)
	}
	fresh := dial(t, r.Address())
	if err := echo(t, fresh, short); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("silent, a new connection ends with %v, want no answer", err)
	}
	r.Set(Whole)
	for _, c := range []net.Conn{conn, fresh} { // what was sent meanwhile arrives
		if err := c.SetDeadline(time.Now().Add(long)); err != nil {
			t.Fatal(err)
		}
		if _, err := io.ReadFull(c, make([]byte, 1)); err != nil {
			t.Errorf("whole again, the link has lost what was sent: %v", err)
		}
	}

	r.Set(Refused)
	for _, c := range []net.Conn{conn, fresh, dial(t, r.Address())} {
		if err := echo(t, c, long); err == nil || errors.Is(err, os.ErrDeadlineExceeded) {
			t.Errorf("refused, a connection ends with %v, want that it is closed", err)
		}
	}
	r.Set(Whole)
	if err := echo(t, dial(t, r.Address()), long); err != nil {
		t.Errorf("whole again, the link does not carry: %v", err)
	}
	if err := r.Close(); err != nil {
		t.Error(err)
	}
}
