package atoll

import (
	"context"
	"fmt"
	"io"
	"net"
	"sync/atomic"
	"time"
)

// balance replaces the Service for several replicas: it listens on loopback and forwards
// each connection to the next replica that accepts it, until ctx is done.
func balance(ctx context.Context, replicas []string) (address string, err error) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", fmt.Errorf("listening before the replicas: %w", err)
	}
	context.AfterFunc(ctx, func() { _ = listener.Close() })
	var turn atomic.Uint64
	go func() {
		for {
			client, err := listener.Accept()
			if err != nil {
				return
			}
			go func() {
				defer func() { _ = client.Close() }()
				if server := dialNext(ctx, replicas, &turn); server != nil {
					splice(ctx, client, server)
				}
			}()
		}
	}()
	return listener.Addr().String(), nil
}

func dialNext(ctx context.Context, replicas []string, turn *atomic.Uint64) net.Conn {
	dialer := net.Dialer{Timeout: time.Second}
	for range replicas {
		replica := replicas[turn.Add(1)%uint64(len(replicas))]
		if conn, err := dialer.DialContext(ctx, "tcp", replica); err == nil {
			return conn
		}
	}
	return nil
}

// splice copies bytes in both directions until one side ends.
func splice(ctx context.Context, a, b net.Conn) {
	stop := context.AfterFunc(ctx, func() { _, _ = a.Close(), b.Close() })
	defer stop()
	done := make(chan struct{}, 2)
	for _, pair := range [][2]net.Conn{{a, b}, {b, a}} {
		go func() {
			_, _ = io.Copy(pair[0], pair[1]) // the end of one side ends both
			done <- struct{}{}
		}()
	}
	<-done
	_, _ = a.Close(), b.Close()
	<-done
}
