// Go's own tests of a connection, between an address to connect to and one to listen at. Whatever connects the two is tested.
package main

import (
	"flag"
	"net"
	"testing"

	"golang.org/x/net/nettest"
)

var (
	front = flag.String("front", "", "where to connect")
	back  = flag.String("back", "127.0.0.1:0", "where to listen")
)

func TestConn(t *testing.T) {
	listener, err := net.Listen("tcp", *back)
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	to := *front
	if to == "" {
		to = listener.Addr().String()
	}
	nettest.TestConn(t, func() (c1, c2 net.Conn, stop func(), err error) {
		if c1, err = net.Dial("tcp", to); err != nil {
			return
		}
		if c2, err = listener.Accept(); err != nil {
			c1.Close()
			return
		}
		return c1, c2, func() { c1.Close(); c2.Close() }, nil
	})
}
