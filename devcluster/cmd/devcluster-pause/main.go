// Command devcluster-pause is what a pod of a real node needs besides its containers, and the
// smallest container for tests: it waits until it is told to end.
//
//	devcluster-pause
//	devcluster-pause serve <host:port>           answers HTTP requests with the name of the host
//	devcluster-pause serve <host:port> <file>    adds the name of the host to a file, as a line, and answers with all lines
//	devcluster-pause get <url>                   prints the answer to an HTTP request, within 5 seconds
//	devcluster-pause lookup <host:port> <name>   prints the IPv4 addresses of a name that a DNS server has, within 5 seconds
//	devcluster-pause echo                        prints its input
//
// Under the name tar it does what kubectl cp needs of that program.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"
	"time"
)

func main() {
	var err error
	switch args := os.Args[1:]; {
	case filepath.Base(os.Args[0]) == "tar":
		err = archive(args, os.Stdin, os.Stdout)
	case len(args) == 1 && args[0] == "echo":
		_, err = io.Copy(os.Stdout, os.Stdin)
	case len(args) == 2 && args[0] == "serve":
		err = serve(args[1], "")
	case len(args) == 3 && args[0] == "serve":
		err = serve(args[1], args[2])
	case len(args) == 2 && args[0] == "get":
		err = get(args[1])
	case len(args) == 3 && args[0] == "lookup":
		err = lookup(args[1], args[2])
	default:
		<-told()
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func serve(address, file string) error {
	name, err := os.Hostname()
	if err != nil {
		return err
	}
	answer := []byte(name)
	if file != "" {
		if answer, err = addLine(file, name); err != nil {
			return err
		}
	}
	fmt.Println("serving as", name)
	server := &http.Server{Addr: address, ReadHeaderTimeout: 10 * time.Second, Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		_, _ = w.Write(answer)
	})}
	go func() {
		<-told()
		_ = server.Close()
	}()
	if err := server.ListenAndServe(); !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}

// told returns a channel that receives a signal to end. The first process of a container is not
// ended by a signal that it does not ask for.
func told() <-chan os.Signal {
	ended := make(chan os.Signal, 1)
	signal.Notify(ended, syscall.SIGTERM, syscall.SIGINT)
	return ended
}

// addLine adds a line to a file and returns the content of the file.
func addLine(file, line string) ([]byte, error) {
	f, err := os.OpenFile(file, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, err
	}
	_, err = fmt.Fprintln(f, line)
	if err := errors.Join(err, f.Close()); err != nil {
		return nil, err
	}
	return os.ReadFile(file)
}

// lookup prints the addresses of a name, one on each line, as a server answers.
func lookup(server, name string) error {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	resolver := &net.Resolver{PreferGo: true, Dial: func(ctx context.Context, network, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, network, server)
	}}
	addresses, err := resolver.LookupNetIP(ctx, "ip4", name)
	for _, a := range addresses {
		fmt.Println(a)
	}
	return err
}

func get(url string) error {
	client := &http.Client{Timeout: 5 * time.Second}
	response, err := client.Get(url) //nolint:noctx // the client has a timeout
	if err != nil {
		return err
	}
	defer response.Body.Close()
	_, err = io.Copy(os.Stdout, response.Body)
	return err
}
