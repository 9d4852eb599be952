package budget

import (
	"reflect"
	"time"
)

// SizeOf estimates the memory that an object takes, in bytes: what it points to, with the
// strings, lists and maps. It is meant for decoded objects of the API, which have no cycles.
func SizeOf(o any) int64 {
	v := reflect.ValueOf(o)
	if !v.IsValid() {
		return 0
	}
	return int64(v.Type().Size()) + below(v)
}

// mapEntry is what an entry of a map takes in addition to key and value, in bytes: maps are
// at most 7/8 full, and half as full right after they have grown.
const mapEntry = 16

var timeType = reflect.TypeFor[time.Time]()

// below returns the memory that a value points to.
func below(v reflect.Value) (size int64) {
	switch v.Kind() {
	case reflect.Pointer, reflect.Interface:
		if !v.IsNil() {
			size = int64(v.Elem().Type().Size()) + below(v.Elem())
		}
	case reflect.String:
		size = int64(v.Len())
	case reflect.Slice:
		size = int64(v.Cap()) * int64(v.Type().Elem().Size())
		if points(v.Type().Elem()) {
			for i := range v.Len() {
				size += below(v.Index(i))
			}
		}
	case reflect.Array:
		if points(v.Type().Elem()) {
			for i := range v.Len() {
				size += below(v.Index(i))
			}
		}
	case reflect.Map:
		size = int64(v.Len()) * (int64(v.Type().Key().Size()+v.Type().Elem().Size()) + mapEntry)
		for it := v.MapRange(); it.Next(); {
			size += below(it.Key()) + below(it.Value())
		}
	case reflect.Struct:
		if v.Type() == timeType { // points to the time zone, which all of them share
			return 0
		}
		for i := range v.NumField() {
			size += below(v.Field(i))
		}
	}
	return size
}

// points reports whether values of a type can point to further memory.
func points(t reflect.Type) bool {
	switch t.Kind() {
	case reflect.Pointer, reflect.Interface, reflect.String, reflect.Slice, reflect.Array, reflect.Map, reflect.Struct:
		return true
	}
	return false
}
