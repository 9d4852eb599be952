package placement

// Webster's method (Sainte-Laguë) gives seats one by one: the next goes to the
// group with the largest quotient weight/(2·seats+1). Every group thus owns a
// falling list of quotients, w/1, w/3, w/5, …, and n seats are the n first
// entries of the lists merged. What a larger n adds comes after: growth never
// takes a seat away.

// precedes says whether group i, holding a seats, gets the next seat before
// group j, holding b: the larger quotient, then fewer seats, then the name in
// the direction of the workload. Groups are sorted by name.
func (s Spread) precedes(weightI, a int64, i int, weightJ, b int64, j int) bool {
	left, right := weightI*(2*b+1), weightJ*(2*a+1)
	if left != right {
		return left > right
	}
	if a != b {
		return a < b
	}
	return (i < j) != s.descending
}

// apportion puts n seats into seats, which is all zero.
//
// The bulk is given at once. All quotients above some divisor D are a prefix
// of the merged list, whatever D is, and group i has as many of them as there
// are odd numbers below w/D. With D = W/(2n−g), for W the sum of the g weights,
// these are at most Σ (w/D + 1)/2 = n and at least n − g in all. The few seats
// that remain follow one by one from there.
func (s Spread) apportion(seats []int, n int64) {
	var sum, groups int64
	for _, weight := range s.weights {
		if weight > 0 {
			sum += weight
			groups++
		}
	}
	if groups == 0 {
		return
	}
	left := n
	if scale := 2*n - groups; scale > 0 {
		for i, weight := range s.weights {
			if weight == 0 {
				continue
			}
			below := (weight*scale - 1) / sum // the largest integer below w/D
			given := (below + 1) / 2
			seats[i] = int(given)
			left -= given
		}
	}
	s.apportionRest(seats, left, int(groups))
}

// apportionRest gives left seats one by one, from a heap with the group whose
// turn it is on top.
func (s Spread) apportionRest(seats []int, left int64, groups int) {
	if left <= 0 {
		return
	}
	var onStack [128]int32
	heap := onStack[:0]
	if groups > len(onStack) {
		heap = make([]int32, 0, groups)
	}
	for i, weight := range s.weights {
		if weight > 0 {
			heap = append(heap, int32(i))
		}
	}
	for root := len(heap)/2 - 1; root >= 0; root-- {
		s.sift(heap, root, seats)
	}
	for ; left > 0; left-- {
		seats[heap[0]]++
		s.sift(heap, 0, seats)
	}
}

// sift moves the entry at root down to its place.
func (s Spread) sift(heap []int32, root int, seats []int) {
	for {
		child := 2*root + 1
		if child >= len(heap) {
			return
		}
		if right := child + 1; right < len(heap) && s.turnBefore(heap[right], heap[child], seats) {
			child = right
		}
		if !s.turnBefore(heap[child], heap[root], seats) {
			return
		}
		heap[root], heap[child] = heap[child], heap[root]
		root = child
	}
}

func (s *Spread) turnBefore(i, j int32, seats []int) bool {
	return s.precedes(s.weights[i], int64(seats[i]), int(i), s.weights[j], int64(seats[j]), int(j))
}

// websterRank is the place, from 1, of group i's k-th seat in the merged list:
// the smallest n for which Divide(n) gives the group k seats. 0 if that is
// never or above limit.
func (s Spread) websterRank(i int, k, limit int64) int64 {
	weight := s.weights[i]
	if weight == 0 {
		return 0
	}
	rank := k
	for j, other := range s.weights {
		if j == i || other == 0 {
			continue
		}
		// Seats m of group j with other/(2m−1) above weight/(2k−1), that is
		// with (2m−1)·weight below reach.
		reach := other * (2*k - 1)
		rank += ((reach-1)/weight + 1) / 2
		// At most one more has the same quotient.
		if odd := reach / weight; reach%weight == 0 && odd%2 == 1 {
			m := (odd + 1) / 2
			if m < k || m == k && (j < i) != s.descending {
				rank++
			}
		}
		if rank > limit {
			return 0
		}
	}
	return rank
}
