// Package webster divides seats in proportion to weights by Webster's method
// (Sainte-Laguë), a highest averages method: each seat goes to the weight with the
// largest quotient weight/(2·seats+1), where seats is what the weight has so far.
//
// Every weight w thus owns a falling list of quotients, w/1, w/3, w/5, …, and n seats
// are the first n entries of all lists merged. A larger n only appends entries, so
// growth never takes a seat from any weight.
//
// The package holds arithmetic only. Other domain packages may import it (see
// docs/architecture.md); it must not import them, and must not contain anything about
// groups, pools or pods.
package webster

import "cmp"

// Compare compares the quotients that decide about the next seat: it returns a
// positive number if weightA, with seatsA seats, has a larger one than weightB with
// seatsB seats, 0 if they are equal, and a negative number otherwise. Callers break
// ties. Weights and seats must not be negative, and weight·(2·seats+1) must fit an
// int64.
func Compare(weightA, seatsA, weightB, seatsB int64) int {
	return cmp.Compare(weightA*(2*seatsB+1), weightB*(2*seatsA+1))
}

// Division divides by fixed weights. Of equal quotients, the weight with fewer seats
// comes first, then the one with the lower index.
//
// Methods do not change it and are safe for concurrent use. For n seats, the product
// of the largest weight and 2·n+1 must fit an int64.
type Division struct {
	// Weights must not be negative. A weight of 0 never gets a seat.
	Weights []int64
	// Descending reverses the last tie-break: the higher index comes first.
	Descending bool
}

// Before reports whether weight i, which has seatsI seats, gets the next seat before
// weight j, which has seatsJ.
func (d Division) Before(i int, seatsI int64, j int, seatsJ int64) bool {
	if c := Compare(d.Weights[i], seatsI, d.Weights[j], seatsJ); c != 0 {
		return c > 0
	}
	if seatsI != seatsJ {
		return seatsI < seatsJ
	}
	return (i < j) != d.Descending
}

// Divide returns how many of n seats each weight gets. The sum is n, or 0 if no weight
// is positive. n must not be negative.
//
// The bulk is given at once. The quotients above any divisor D are a prefix of the
// merged list, and weight w has as many of them as there are odd numbers below w/D.
// With D = W/(2n−g), where W is the sum of the g positive weights, that is at most
// Σ (w/D + 1)/2 = n quotients and at least n − g. The few seats that remain are given
// one by one.
func (d Division) Divide(n int64) []int {
	seats := make([]int, len(d.Weights))
	var sum, positive int64
	for _, weight := range d.Weights {
		if weight > 0 {
			sum += weight
			positive++
		}
	}
	if positive == 0 {
		return seats
	}
	left := n
	if scale := 2*n - positive; scale > 0 {
		for i, weight := range d.Weights {
			if weight == 0 {
				continue
			}
			below := (weight*scale - 1) / sum // the largest integer below w/D
			given := (below + 1) / 2
			seats[i] = int(given)
			left -= given
		}
	}
	d.divideRest(seats, left, int(positive))
	return seats
}

// divideRest adds left seats to seats, one by one. A heap keeps the weight that gets
// the next seat on top; positive is the number of positive weights.
func (d Division) divideRest(seats []int, left int64, positive int) {
	if left <= 0 {
		return
	}
	var onStack [128]int32 // spares an allocation in all but the largest divisions
	heap := onStack[:0]
	if positive > len(onStack) {
		heap = make([]int32, 0, positive)
	}
	for i, weight := range d.Weights {
		if weight > 0 {
			heap = append(heap, int32(i))
		}
	}
	for root := len(heap)/2 - 1; root >= 0; root-- {
		d.sift(heap, root, seats)
	}
	for ; left > 0; left-- {
		seats[heap[0]]++
		d.sift(heap, 0, seats)
	}
}

// sift moves the entry at root down to its place in the heap.
func (d *Division) sift(heap []int32, root int, seats []int) {
	for {
		child := 2*root + 1
		if child >= len(heap) {
			return
		}
		if right := child + 1; right < len(heap) && d.heapLess(heap[right], heap[child], seats) {
			child = right
		}
		if !d.heapLess(heap[child], heap[root], seats) {
			return
		}
		heap[root], heap[child] = heap[child], heap[root]
		root = child
	}
}

func (d *Division) heapLess(i, j int32, seats []int) bool {
	return d.Before(int(i), int64(seats[i]), int(j), int64(seats[j]))
}

// Rank returns the place, from 1, of the k-th seat of weight i in the order in which
// seats are given: the smallest n for which Divide(n) gives weight i k seats. It
// returns 0 if the weight never gets k seats, or if the place is above limit. k counts
// from 1.
func (d Division) Rank(i int, k, limit int64) int64 {
	weight := d.Weights[i]
	if weight == 0 {
		return 0
	}
	rank := k
	for j, other := range d.Weights {
		if j == i || other == 0 {
			continue
		}
		// Count the seats m of weight j with other/(2m−1) above weight/(2k−1), which
		// means (2m−1)·weight below reach.
		reach := other * (2*k - 1)
		rank += ((reach-1)/weight + 1) / 2
		// At most one more seat of weight j has the same quotient.
		if odd := reach / weight; reach%weight == 0 && odd%2 == 1 {
			m := (odd + 1) / 2
			if m < k || m == k && (j < i) != d.Descending {
				rank++
			}
		}
		if rank > limit {
			return 0
		}
	}
	return rank
}
