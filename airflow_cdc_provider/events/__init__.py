"""Events: conversion of decoded changes to keys, values, headers and topics of Kafka records."""
