package gate

import "math"

// Binomial returns the exact two-sided interval of a probability of which so many
// of n tries came true (Clopper and Pearson, 1934). n is at least 1.
func Binomial(came, n int, confidence float64) (low, high float64) {
	side := (1 - confidence) / 2
	if came > 0 {
		low = betaQuantile(side, float64(came), float64(n-came+1))
	}
	high = 1
	if came < n {
		high = betaQuantile(1-side, float64(came+1), float64(n-came))
	}
	return low, high
}

// betaQuantile is where the Beta distribution has a share below it.
func betaQuantile(share, a, b float64) float64 {
	low, high := 0.0, 1.0
	for range 50 {
		middle := (low + high) / 2
		if betaBelow(middle, a, b) < share {
			low = middle
		} else {
			high = middle
		}
	}
	return (low + high) / 2
}

// betaBelow is the regularised incomplete beta function, by the continued fraction
// of DLMF 8.17.22, evaluated by Lentz's method.
func betaBelow(x, a, b float64) float64 {
	if x <= 0 || x >= 1 {
		return min(max(x, 0), 1)
	}
	if x > (a+1)/(a+b+2) {
		return 1 - betaBelow(1-x, b, a)
	}
	lab, _ := math.Lgamma(a + b)
	la, _ := math.Lgamma(a)
	lb, _ := math.Lgamma(b)
	front := math.Exp(lab-la-lb+a*math.Log(x)+b*math.Log1p(-x)) / a
	const tiny = 1e-300
	away := func(v float64) float64 {
		if math.Abs(v) < tiny {
			return tiny
		}
		return v
	}
	c, d := 1.0, 1/away(1-(a+b)*x/(a+1))
	value := d
	for m := 1.0; m < 1000; m++ {
		even := m * (b - m) * x / ((a + 2*m - 1) * (a + 2*m))
		d, c = 1/away(1+even*d), away(1+even/c)
		value *= d * c
		odd := -(a + m) * (a + b + m) * x / ((a + 2*m) * (a + 2*m + 1))
		d, c = 1/away(1+odd*d), away(1+odd/c)
		step := d * c
		value *= step
		if math.Abs(step-1) < 1e-13 {
			break
		}
	}
	return front * value
}
